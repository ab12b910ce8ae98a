"""The part of the Kubernetes API that the agent honours. What is not here is ignored."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class Metadata(Model):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: float | None = None


class Object(Model):
    metadata: Metadata

    @property
    def key(self) -> tuple[str, str]:
        return self.metadata.namespace, self.metadata.name


# --- what a container is told ----------------------------------------------------------------------------------------


class FieldReference(Model):
    field_path: str


class KeyReference(Model):
    name: str
    key: str
    optional: bool = False


class EnvironmentSource(Model):
    field_ref: FieldReference | None = None
    config_map_key_ref: KeyReference | None = None
    secret_key_ref: KeyReference | None = None


class EnvironmentVariable(Model):
    name: str
    value: str = ""
    value_from: EnvironmentSource | None = None


class ObjectReference(Model):
    name: str
    optional: bool = False


class EnvironmentFrom(Model):
    prefix: str = ""
    config_map_ref: ObjectReference | None = None
    secret_ref: ObjectReference | None = None


# --- volumes ---------------------------------------------------------------------------------------------------------


class KeyToPath(Model):
    key: str
    path: str


class ConfigMapFiles(Model):
    name: str
    items: list[KeyToPath] = []
    optional: bool = False


class SecretFiles(Model):
    """`secretName` in a volume, `name` in a projection."""

    name: str = ""
    secret_name: str = ""
    items: list[KeyToPath] = []
    optional: bool = False


class DownwardFile(Model):
    path: str
    field_ref: FieldReference | None = None


class DownwardFiles(Model):
    items: list[DownwardFile] = []


class ServiceAccountToken(Model):
    path: str
    audience: str = ""
    expiration_seconds: int = 3600


class Projection(Model):
    config_map: ConfigMapFiles | None = None
    secret: SecretFiles | None = None
    downward_api: DownwardFiles | None = Field(None, alias="downwardAPI")
    service_account_token: ServiceAccountToken | None = None


class Projected(Model):
    sources: list[Projection] = []


class HostPath(Model):
    path: str
    type: str = ""


class ClaimSource(Model):
    claim_name: str


class Volume(Model):
    name: str
    empty_dir: dict[str, Any] | None = None
    host_path: HostPath | None = None
    persistent_volume_claim: ClaimSource | None = None
    config_map: ConfigMapFiles | None = None
    secret: SecretFiles | None = None
    downward_api: DownwardFiles | None = Field(None, alias="downwardAPI")
    projected: Projected | None = None

    def projections(self) -> list[Projection]:
        """The four kinds of volumes that are made of files, as one: what each is a special case of."""
        if self.projected:
            return self.projected.sources
        projection = Projection(config_map=self.config_map, secret=self.secret, downward_api=self.downward_api)
        return [projection] if projection != Projection() else []


class Mount(Model):
    name: str
    mount_path: str
    sub_path: str = ""


# --- probes ----------------------------------------------------------------------------------------------------------


class ExecAction(Model):
    command: list[str] = []


class Header(Model):
    name: str
    value: str


class HttpAction(Model):
    port: int | str
    path: str = "/"
    host: str = ""
    scheme: str = "HTTP"
    http_headers: list[Header] = []


class TcpAction(Model):
    port: int | str
    host: str = ""


class SleepAction(Model):
    seconds: float


class Handler(Model):
    exec: ExecAction | None = None
    http_get: HttpAction | None = None
    tcp_socket: TcpAction | None = None
    sleep: SleepAction | None = None  # of lifecycle hooks only


class Probe(Handler):
    initial_delay_seconds: float = 0
    period_seconds: float = 10
    timeout_seconds: float = 1
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_period_seconds: float | None = None


class Lifecycle(Model):
    pre_stop: Handler | None = None


# --- pods ------------------------------------------------------------------------------------------------------------


class ContainerPort(Model):
    container_port: int
    name: str = ""


class Resources(Model):
    limits: dict[str, str] = {}


class Container(Model):
    name: str
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    working_dir: str = ""
    env: list[EnvironmentVariable] = []
    env_from: list[EnvironmentFrom] = []
    ports: list[ContainerPort] = []
    resources: Resources = Resources()
    volume_mounts: list[Mount] = []
    startup_probe: Probe | None = None
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None
    lifecycle: Lifecycle = Lifecycle()
    termination_message_path: str = "/dev/termination-log"
    termination_message_policy: str = "File"

    def port_number(self, port: int | str) -> int | None:
        """Of a port that is given by number or by name."""
        if isinstance(port, int) or port.isdigit():
            return int(port)
        return next((known.container_port for known in self.ports if known.name == port), None)


class ReadinessGate(Model):
    condition_type: str


class PodSpec(Model):
    containers: list[Container]
    init_containers: list[Container] = []
    volumes: list[Volume] = []
    restart_policy: str = "Always"
    termination_grace_period_seconds: float = 30
    node_name: str = ""
    service_account_name: str = "default"
    host_network: bool = False
    readiness_gates: list[ReadinessGate] = []


class Condition(Model):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class PodStatus(Model):
    phase: str = ""
    pod_ip: str = Field("", alias="podIP")
    conditions: list[Condition] = []

    def is_true(self, condition: str) -> bool:
        return any(item.type == condition and item.status == "True" for item in self.conditions)


class Pod(Object):
    spec: PodSpec
    status: PodStatus = PodStatus()

    @property
    def finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")


# --- what pods refer to ----------------------------------------------------------------------------------------------


class ConfigMap(Object):
    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}

    def files(self) -> dict[str, bytes]:
        texts = {key: text.encode() for key, text in self.data.items()}
        return texts | {key: base64.b64decode(text) for key, text in self.binary_data.items()}


class Secret(Object):
    data: dict[str, str] = {}

    def files(self) -> dict[str, bytes]:
        return {key: base64.b64decode(text) for key, text in self.data.items()}


class ClaimSpec(Model):
    volume_name: str = ""


class Claim(Object):
    spec: ClaimSpec = ClaimSpec()


class LocalPath(Model):
    path: str


class PersistentVolumeSpec(Model):
    host_path: HostPath | None = None
    local: LocalPath | None = None


class PersistentVolume(Object):
    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class ServicePort(Model):
    port: int
    name: str = ""
    protocol: str = "TCP"
    target_port: int | str = 0


class ServiceSpec(Model):
    type: str = "ClusterIP"
    cluster_ip: str = Field("", alias="clusterIP")
    selector: dict[str, str] = {}
    ports: list[ServicePort] = []
    publish_not_ready_addresses: bool = False


class Service(Object):
    spec: ServiceSpec = ServiceSpec()
