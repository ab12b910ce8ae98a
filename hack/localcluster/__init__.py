"""A real Kubernetes control plane on one machine, with a node agent that runs pods as local processes.

A test component: small, no root, no images, no isolation. See README.md.
"""

from localcluster.cluster import Cluster

__all__ = ["Cluster"]
