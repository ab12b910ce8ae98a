"""A real node: kubelet, containerd and kube-proxy, for what processes can not show. Linux, root, Debian's packages.

Nothing leaves the machine and nothing stays on it, by construction: the whole cluster has a network namespace without
a way out, and the node has process and mount namespaces of its own. When its first process ends, however it ends, the
kernel takes every container, mount, bridge and iptables rule with it; what remains are the cluster's folder and empty
control groups, which the supervisor or the next start removes.
"""
