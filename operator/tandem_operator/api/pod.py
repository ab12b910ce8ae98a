"""`spec.pod`, and the variables that it shares with `spec.engine`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from tandem_operator.api.base import ApiModel, Name, NamedReference, Rule, StringMap


class KeyReference(ApiModel):
    name: Name
    key: Name


class EnvSource(ApiModel):
    """Where the value of a variable comes from: exactly one of the fields."""

    secret_key_ref: KeyReference | None = None
    config_map_key_ref: KeyReference | None = None
    rules: ClassVar = (
        Rule(
            "has(self.secretKeyRef) != has(self.configMapKeyRef)",
            "valueFrom names exactly one of secretKeyRef and configMapKeyRef",
        ),
    )


class EnvVar(ApiModel):
    name: Name
    value: Annotated[str, Field(max_length=8192)] | None = None
    value_from: EnvSource | None = None
    rules: ClassVar = (Rule("!(has(self.value) && has(self.valueFrom))", "value and valueFrom exclude each other"),)


class Toleration(ApiModel):
    key: Annotated[str, Field(max_length=316)] | None = None
    operator: Annotated[str, Field(pattern="^(Exists|Equal)$", max_length=16)] | None = None
    value: Annotated[str, Field(max_length=63)] | None = None
    effect: Annotated[str, Field(pattern="^(NoSchedule|PreferNoSchedule|NoExecute)$", max_length=32)] | None = None
    toleration_seconds: int | None = None


class Pod(ApiModel):
    """Where and how the workers are scheduled; the validation Job takes the same."""

    node_selector: StringMap = {}
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = []
    affinity: Annotated[
        dict[str, Any],
        Field(
            json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
            description="As in a pod; the API server checks it when the workers are created.",
        ),
    ] = {}
    runtime_class_name: Name | None = None
    priority_class_name: Name | None = None
    image_pull_secrets: Annotated[list[NamedReference], Field(max_length=16)] = []
    env: Annotated[list[EnvVar], Field(max_length=64)] = []
    termination_grace_period_seconds: Annotated[
        int,
        Field(
            ge=10,
            le=3600,
            description="A worker that is to go takes no new requests and lets those that run end, for so long.",
        ),
    ] = 60
    labels: StringMap = {}
    annotations: StringMap = {}
    rules: ClassVar = (
        Rule(
            "!self.labels.exists(key, key.startsWith('tandem.dev/') || key.startsWith('app.kubernetes.io/'))",
            "labels must not begin with tandem.dev/ or app.kubernetes.io/: the operator sets these",
        ),
    )
