"""The control plane's command lines, and the files they need."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography.hazmat.primitives.asymmetric import ec

from localcluster.certificates import Authority, write_key
from localcluster.kubelet.isolation import SERVICE_NETWORK
from localcluster.settings import Layout, write_atomically

_USERS = {
    "admin": ("admin", "system:masters"),
    "agent": ("system:node:local", "system:nodes"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
}
# NodeRestriction and the Node authoriser apply to the group system:nodes. The agent needs more than a kubelet (it
# plays kube-proxy, too), so it keeps a kubelet's user name, which the audit log shows, in the administrators' group.
_AGENT = ("system:node:local", "system:masters")

# The endpoints controllers are off where the agent is the node, because the API server refuses loopback addresses in
# EndpointSlices; the agent reads pods and Services itself.
_NO_ENDPOINTS = ",-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller"
_SERVICE_ADDRESS = "10.96.0.1"  # of the API server itself, for pods

# Every request, with who, what and the answer's code, but no bodies: enough to compare a role with what was used.
_AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
"""


@dataclass(frozen=True)
class ControlPlane:
    """Free ports, keys and kubeconfigs of one cluster, and what to run with them."""

    layout: Layout
    node_address: str
    real_node: bool  # its pods have addresses of a network, and find the API server by its Service
    api_port: int
    etcd_port: int
    etcd_peer_port: int

    @classmethod
    def create(cls, layout: Layout, node_address: str, real_node: bool = False) -> ControlPlane:
        state = layout.state
        state.mkdir(mode=0o700)
        plane = cls(layout, node_address, real_node, *_free_ports(3))
        authority = Authority.create(state)
        addresses = ["127.0.0.1", node_address, _SERVICE_ADDRESS]
        authority.issue(state, "apiserver", addresses, ["localhost", "kubernetes", "kubernetes.default.svc"])
        authority.issue(state, "kubelet", [node_address], ["local"])
        write_key(state / "service-accounts.key", ec.generate_private_key(ec.SECP256R1()))
        users = _USERS if real_node else _USERS | {"agent": _AGENT}
        tokens = {user: secrets.token_hex(16) for user in users}
        rows = (f'{tokens[key]},{name},{key},"{groups}"\n' for key, (name, groups) in users.items())
        write_atomically(state / "tokens.csv", "".join(rows))
        write_atomically(state / "audit-policy.yaml", _AUDIT_POLICY)
        for user in users:
            path = layout.kubeconfig if user == "admin" else state / f"{user}.kubeconfig"
            write_atomically(path, kubeconfig(plane.url, layout.certificate_authority, {"token": tokens[user]}))
        return plane

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.api_port}"

    def commands(self) -> dict[str, list[str]]:
        """Component -> arguments, in the order of their start. Controllers and scheduler need a ready API server."""
        return {
            "etcd": self._etcd(),
            "kube-apiserver": self._api_server(),
            "kube-controller-manager": self._controllers(),
            "kube-scheduler": self._scheduler(),
        }

    def _etcd(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self.etcd_peer_port}"
        return [
            f"--data-dir={self.layout.state / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def _api_server(self) -> list[str]:
        state = self.layout.state
        reached = (
            ["--bind-address=0.0.0.0", f"--advertise-address={self.node_address}"]
            if self.real_node
            # Nobody dials the advertised address here, but without one a machine that has no route does not start.
            else ["--bind-address=127.0.0.1", "--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none"]
        )
        return [
            *reached,
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            f"--secure-port={self.api_port}",
            f"--tls-cert-file={state / 'apiserver.crt'}",
            f"--tls-private-key-file={state / 'apiserver.key'}",
            f"--token-auth-file={state / 'tokens.csv'}",
            f"--service-account-key-file={state / 'service-accounts.key'}",
            f"--service-account-signing-key-file={state / 'service-accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=Node,RBAC",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-certificate-authority={self.layout.certificate_authority}",
            f"--audit-policy-file={state / 'audit-policy.yaml'}",
            f"--audit-log-path={self.layout.logs / 'audit.log'}",
        ]

    def _controllers(self) -> list[str]:
        state = self.layout.state
        return [
            f"--kubeconfig={state / 'controllers.kubeconfig'}",
            f"--service-account-private-key-file={state / 'service-accounts.key'}",
            "--use-service-account-credentials",
            f"--root-ca-file={self.layout.certificate_authority}",
            "--leader-elect=false",
            f"--controllers=*{'' if self.real_node else _NO_ENDPOINTS}",
            "--secure-port=0",
            "--pvclaimbinder-sync-period=1s",  # the default of 15 s is what a test would wait for a claim
            "--horizontal-pod-autoscaler-sync-period=1s",  # the same
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ]

    def _scheduler(self) -> list[str]:
        return [
            f"--kubeconfig={self.layout.state / 'scheduler.kubeconfig'}",
            "--leader-elect=false",
            "--secure-port=0",
        ]


def kubeconfig(url: str, certificate_authority: Path, user: dict[str, str], namespace: str = "default") -> str:
    """A kubeconfig with one context. `user` is that section as it stands: `token`, `tokenFile`."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "local", "cluster": {"server": url, "certificate-authority": str(certificate_authority)}}
            ],
            "users": [{"name": "local", "user": user}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "local", "namespace": namespace}}],
            "current-context": "local",
        },
        sort_keys=False,
    )


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports
