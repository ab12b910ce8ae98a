"""`spec`: what the user wants. Defaults make a five-line spec work; each CEL rule is tested both ways."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tandem_operator.api.base import ApiModel, Name, Quantity, Rule, ShortText
from tandem_operator.api.pod import EnvVar, KeyReference, Pod
from tandem_operator.api.rollout import Guard, Rollout, Traffic

Path = Annotated[str, Field(min_length=1, max_length=1024)]


class HostPathSource(ApiModel):
    """A folder of the node. A privilege: refused unless the operator was started with a prefix that allows it."""

    path: Path
    rules: ClassVar = (
        Rule("self.path.startsWith('/')", "path must be absolute"),
        Rule("!self.path.split('/').exists(part, part == '..')", "path must not contain '..'"),
    )


class PvcSource(ApiModel):
    """A folder of a PersistentVolumeClaim in the namespace of the object."""

    claim_name: Name
    path: Annotated[str, Field(max_length=1024, description="Folder inside the volume; empty: its root.")] = ""
    rules: ClassVar = (
        Rule("!self.path.startsWith('/')", "path is relative to the root of the volume; leave out the leading '/'"),
        Rule("!self.path.split('/').exists(part, part == '..')", "path must not contain '..'"),
    )


class Source(ApiModel):
    """Where a checkpoint lies: exactly one of the fields."""

    host_path: HostPathSource | None = None
    pvc: PvcSource | None = None
    rules: ClassVar = (Rule("has(self.hostPath) != has(self.pvc)", "a source names exactly one of hostPath and pvc"),)


class Target(ApiModel):
    """The large model."""

    source: Source


class TrainedOn(ApiModel):
    """What the training run says of itself; compared with what the engine will do."""

    capture_indexes: Annotated[
        list[Annotated[int, Field(ge=0, le=1024)]],
        Field(
            min_length=1,
            max_length=16,
            description="Capture index i is the residual stream that enters decoder layer i; 0 is the embedding.",
        ),
    ]


class Drafter(ApiModel):
    """The EAGLE-3 head that proposes tokens."""

    source: Source
    trained_on: TrainedOn | None = None


DEFAULT_DRAFT_LENGTH = 5


class Speculation(ApiModel):
    """How the pair speculates."""

    enabled: bool = True
    draft_length: Annotated[
        Annotated[int, Field(ge=1, le=8)] | Literal["auto"],
        Field(
            description="Tokens proposed per round, 1 to 8; auto: as many as pay, 0 to 8, by the number of requests, "
            "what is accepted, and what rounds cost when the worker warms up.",
            json_schema_extra={"x-kubernetes-int-or-string": True},
        ),
    ] = DEFAULT_DRAFT_LENGTH
    rules: ClassVar = (
        Rule(
            "type(self.draftLength) == int ? self.draftLength >= 1 && self.draftLength <= 8 "
            ": self.draftLength == 'auto'",
            "draftLength is 1 to 8, or auto",
        ),
    )

    @property
    def fixed_draft_length(self) -> int:
        """For those who need one number: validation, SGLang, vLLM."""
        return DEFAULT_DRAFT_LENGTH if self.draft_length == "auto" else self.draft_length


class EngineType(StrEnum):
    BUILTIN = "builtin"
    SGLANG = "sglang"
    VLLM = "vllm"


class Engine(ApiModel):
    """What runs the pair. What SGLang and vLLM do with a pair depends on their version; see docs/engines.md."""

    type: EngineType = EngineType.BUILTIN
    version: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=64,
                description="Of SGLang or vLLM, such as 0.5.23: the one that the image holds. The pair is validated "
                "for it, and a worker that says another one is taken back.",
            ),
        ]
        | None
    ) = None
    image: (
        Annotated[
            str,
            Field(
                max_length=512,
                description="Default: the operator's worker image, lmsysorg/sglang:v<version> or "
                "vllm/vllm-openai:v<version>.",
            ),
        ]
        | None
    ) = None
    gpu_memory_fraction: (
        Annotated[
            float,
            Field(
                ge=0.01,
                le=1,
                description="Of the GPU's memory, for each worker: it must be free when the worker starts, and no more "
                "is taken. For GPUs that several workers share. Default: what is needed.",
            ),
        ]
        | None
    ) = None
    tensor_parallel: (
        Annotated[
            int,
            Field(
                ge=1,
                le=64,
                description="GPUs of one node that share the target, for each worker; as many as resources.limits asks "
                "for. What SGLang and vLLM do with the drafter then is theirs; the builtin engine keeps it whole on "
                "each. Default: one.",
            ),
        ]
        | None
    ) = None
    context_length: (
        Annotated[
            int, Field(ge=1, le=100_000_000, description="Tokens of prompt and completion; default: the target's.")
        ]
        | None
    ) = None
    args: Annotated[
        list[Annotated[str, Field(max_length=4096)]],
        Field(
            max_length=64,
            description="The engine's own arguments. They are validated with the pair; what ties the engine to the "
            "operator (model, drafter, address, name, metrics) cannot be changed by them.",
        ),
    ] = []
    env: Annotated[list[EnvVar], Field(max_length=64, description="Of the engine's container; validated, too.")] = []
    rules: ClassVar = (
        Rule(
            "self.type == 'builtin' || has(self.version)",
            "engine.version is required for sglang and vllm: what they do with a pair depends on it",
        ),
        Rule(
            "self.type != 'builtin' || !has(self.version)",
            "engine.version is for sglang and vllm; the version of the builtin engine is that of its image",
        ),
    )


class Resources(ApiModel):
    """Of each worker, as in a container."""

    limits: Annotated[dict[str, Quantity], Field(max_length=16)] = {}
    requests: Annotated[dict[str, Quantity], Field(max_length=16)] = {}


class ValidationMode(StrEnum):
    STATIC = "Static"
    PROBE = "Probe"


class Enforcement(StrEnum):
    ENFORCE = "Enforce"
    WARN = "Warn"


class OnInvalid(StrEnum):
    BLOCK = "Block"
    SERVE_TARGET_ONLY = "ServeTargetOnly"


class Prompts(ApiModel):
    """JSON lines with "prompt" or "messages", in a ConfigMap beside the object."""

    name: Name
    key: Name = "prompts.jsonl"


class Probe(ApiModel):
    """What the pair is run on, and what is asked of it."""

    prompts: Annotated[
        Prompts | None, Field(description="Read when the pair is validated. Default: the texts that ship with Tandem.")
    ] = None
    continuation_tokens: Annotated[
        int,
        Field(
            ge=0,
            le=1024,
            description="Judge so many tokens that the target itself goes on with, which drafters are trained on; the "
            "target must fit in memory. 0: judge the texts themselves, with one layer in memory at a time.",
        ),
    ] = 0
    min_accept_length: Annotated[
        float | None, Field(ge=1, le=100, description="Tokens per round. Default: guard.minAcceptLength.")
    ] = None
    resume: Annotated[
        PvcSource | None,
        Field(
            description="A claim that may be written to. What the probe has reached of the target is kept there, layer "
            "by layer: an evicted Job goes on where it was, and another drafter of the same target is judged at once. "
            "Default: an evicted Job starts over."
        ),
    ] = None


class Validation(ApiModel):
    """What is checked before a worker starts. Static reads configs and headers; Probe also runs the pair."""

    mode: ValidationMode = ValidationMode.STATIC
    enforcement: Annotated[
        Enforcement, Field(description="Enforce: a pair that does not fit, or could not be checked, is not rolled out.")
    ] = Enforcement.ENFORCE
    on_invalid: Annotated[
        OnInvalid,
        Field(
            description="When nothing serves yet and the pair is refused. Block: nothing is started. ServeTargetOnly: "
            "the target serves without speculation until there is a pair that fits."
        ),
    ] = OnInvalid.BLOCK
    probe: Probe | None = None
    rules: ClassVar = (Rule("!has(self.probe) || self.mode == 'Probe'", "probe is for mode Probe"),)


class Spec(ApiModel):
    """A pair and how it is run."""

    target: Target
    drafter: Drafter | None = None
    speculation: Speculation = Speculation()
    engine: Engine = Engine()
    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    resources: Resources = Resources()
    validation: Validation = Validation()
    rollout: Rollout = Rollout()
    guard: Guard = Guard()
    pod: Pod = Pod()
    traffic: Traffic = Traffic()
    revision_history_limit: Annotated[int, Field(ge=0, le=100)] = 10
    paused: Annotated[
        bool,
        Field(description="No rollout begins or goes on. What serves is scaled, watched and taken back as ever."),
    ] = False
    model_name: (
        Annotated[
            ShortText, Field(description="Name under which /v1/models lists the target; default: the object's name.")
        ]
        | None
    ) = None
    rules: ClassVar = (
        Rule(
            "has(self.drafter) || !self.speculation.enabled",
            "drafter is required unless speculation.enabled is false",
        ),
        Rule(
            "!has(self.engine.gpuMemoryFraction) || self.resources.limits.exists(name, name.startsWith('nvidia.com/'))",
            "engine.gpuMemoryFraction is for workers on a GPU: ask for one in resources.limits",
        ),
        Rule(
            "!has(self.engine.tensorParallel) || self.engine.tensorParallel == 1 "
            "|| ('nvidia.com/gpu' in self.resources.limits "
            "&& string(self.resources.limits['nvidia.com/gpu']) == string(self.engine.tensorParallel))",
            "engine.tensorParallel needs as many GPUs: set nvidia.com/gpu in resources.limits to the same number",
        ),
        Rule(
            "self.speculation.draftLength != 'auto' || self.engine.type == 'builtin'",
            "draftLength: auto is for the builtin engine; SGLang and vLLM draft so many tokens as they are told",
        ),
        Rule(
            # Two objects of different schemas cannot be compared in CEL, their fields can.
            "!has(self.drafter) || !(has(self.drafter.source.hostPath) && has(self.target.source.hostPath) "
            "? self.drafter.source.hostPath.path == self.target.source.hostPath.path "
            ": has(self.drafter.source.pvc) && has(self.target.source.pvc) "
            "&& self.drafter.source.pvc.claimName == self.target.source.pvc.claimName "
            "&& self.drafter.source.pvc.path == self.target.source.pvc.path)",
            "drafter.source must differ from target.source: the target cannot be its own drafter",
        ),
        Rule(
            # While a canary runs, workers of both revisions answer behind one Service.
            "(has(self.modelName) ? self.modelName : '') == (has(oldSelf.modelName) ? oldSelf.modelName : '')",
            "modelName cannot be changed: clients of the old name would fail on every worker of the new revision; "
            "make another object for the new name",
        ),
    )

    @property
    def speculates(self) -> bool:
        return self.drafter is not None and self.speculation.enabled

    @property
    def config_references(self) -> list[KeyReference]:
        """Keys of ConfigMaps whose content is part of what runs."""
        sources = (variable.value_from for variable in (*self.pod.env, *self.engine.env))
        return [source.config_map_key_ref for source in sources if source and source.config_map_key_ref]
