"""What a cluster is told at its start, and what it says about itself: the files in its directory."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Gpu(Frozen):
    uuid: str
    name: str
    memory_mib: int


class KubeletNode(Frozen):
    """A real node in place of the agent: see kubelet/."""

    archives: tuple[Path, ...]  # docker archives of all images that its pods can run: nothing is pulled
    programs: Path  # containerd, runc and CNI's plugins, as Debian's packages lay them out
    environment: Path | None = None  # site-packages for pods of the runtime class `environment`
    claimed_gpus: int = 4  # nvidia.com/gpu, of which there is nothing


class Settings(Frozen):
    """`settings.json`: written once by whoever starts the cluster, read by the supervisor and by the node agent."""

    name: str
    claimed_gpus: int = 16  # nvidia.com/gpu that the node offers without `gpus`; nothing stands behind them
    gpus: tuple[Gpu, ...] = ()  # real ones
    gpu_shares: int = 1  # containers that may use one of them at a time; nobody divides its memory
    images: dict[str, list[str]] = {}  # more rows for the table in images.py: name -> command
    restart_delay_seconds: float = 1.0  # back-off of crashing containers; a kubelet takes 10 s to 300 s
    restart_delay_limit_seconds: float = 30.0
    hollow: bool = False  # a second node, whose pods are answered for by one process: see hack/hollow
    kubelet: KubeletNode | None = None

    @property
    def offered_gpus(self) -> int:
        return len(self.gpus) * self.gpu_shares if self.gpus else self.claimed_gpus

    @property
    def control_group(self) -> str:
        """Of a real node's pods."""
        return f"tandem-{self.name}"


class ServiceAddress(Frozen):
    """Where one port of a Service is served on this machine."""

    namespace: str
    name: str
    port: int
    port_name: str = ""
    host: str
    local_port: int

    @property
    def dns_url(self) -> str:
        """As a client in a real cluster would write it."""
        return f"http://{self.name}.{self.namespace}.svc:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.local_port}"


class ServiceTable(Frozen):
    """`services.json`: written by the node agent whenever a Service comes or goes."""

    services: tuple[ServiceAddress, ...] = ()


class Layout:
    """The files of one cluster. Everything that a cluster writes lies under its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.settings = directory / "settings.json"
        self.supervisor = directory / "supervisor.pid"  # locked while the supervisor lives
        self.ready = directory / "ready"
        self.failure = directory / "failure"  # why the cluster ended by itself
        self.kubeconfig = directory / "kubeconfig"
        self.fates = directory / "fates.json"  # told to a hollow node
        self.services = directory / "services.json"
        self.logs = directory / "logs"
        self.binaries = directory / "bin"
        self.state = directory / "control-plane"
        self.pods = directory / "pods"
        self.etcd_url = directory / "etcd.url"

    @property
    def agent_kubeconfig(self) -> Path:
        return self.state / "agent.kubeconfig"

    @property
    def certificate_authority(self) -> Path:
        return self.state / "ca.crt"


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Readers see the old text or the new one, never half of it."""
    partial = path.with_name(f".{path.name}.new")
    partial.write_text(text)
    partial.chmod(mode)
    partial.replace(path)
