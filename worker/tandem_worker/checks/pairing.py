"""What every static check looks at: both checkpoints as they declare themselves, and what one engine makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tandem_worker.checkpoint import TensorInfo
from tandem_worker.checkpoint.declared import DeclaredDrafter, DeclaredTarget
from tandem_worker.checkpoint.tensors import INTEGERS, Array, read_tensor, unwritten
from tandem_worker.checks.deployment import Deployment, truth
from tandem_worker.checks.engine_resolution import EngineResolution, Use, resolve_for
from tandem_worker.checks.names import PACKED, meant_for
from tandem_worker.engines import Engine
from tandem_worker.finding import Finding

T2D_DTYPES = INTEGERS | {"BOOL": "?"}
NORMS = ("norm.weight", *(f"midlayer.{name}.weight" for name in ("input_layernorm", "post_attention_layernorm")))
FIRST_INPUTS = ("midlayer.self_attn.q_proj.weight", "midlayer.self_attn.q_a_proj.weight")
LARGEST_VOCABULARY = 2**24
PACKED_DTYPES = frozenset({"U8", "I32", "U32", "F4", "I8"})


def packed(tensor: TensorInfo) -> bool:
    """Several quantised weights in one element: the shape is another than the matrix's."""
    return tensor.dtype in PACKED_DTYPES or bool(PACKED.search(tensor.name))


@dataclass(frozen=True)
class Pairing:
    """H hidden size of the drafter, Ht of the target, V target vocabulary, Vd draft vocabulary."""

    target: DeclaredTarget
    drafter: DeclaredDrafter
    engine: Engine
    trained_on: tuple[int, ...] | None = None
    deployment: Deployment = field(default_factory=Deployment)

    @cached_property
    def resolution(self) -> EngineResolution:
        return resolve_for(self.target, self.drafter, self.engine, self._runner)

    @property
    def _runner(self) -> str:
        """The model runner that the deployment forces; empty: the engine's own choice."""
        names = self.engine.table.arguments.get("runner_env", ())
        forced = next((self.deployment.env[name] for name in names if self.deployment.env.get(name)), "")
        if forced:
            return "v2" if truth(forced) else "v1"
        parallel = truth(str(self.deployment.values.get("parallel_drafting", "")))
        staged = (self.deployment.number("pipeline_parallel") or 1) > 1
        kind = "parallel_drafting" if parallel else "pipeline" if staged else ""
        return str(self.engine.ask("runner", "", kind=kind).value) if kind else ""

    @property
    def config_file(self) -> object:
        return self.drafter.checkpoint.config.file

    @property
    def says(self) -> str:
        """The engine at the beginning of a sentence."""
        title = self.engine.title
        return title[0].upper() + title[1:] if title.startswith(("an ", "the ")) else title

    @property
    def neutral(self) -> bool:
        """No engine is named: where engines differ, a check warns."""
        return bool(self.engine.ask("portability", False).value)

    @property
    def refused(self) -> bool:
        """The engine has no class for this drafter: what its class would do with it is no question."""
        return self.resolution.family in ("", "plain", "other") and "the drafter's class" not in self.resolution.unknown

    @cached_property
    def parameters(self) -> Mapping[str, TensorInfo]:
        """Drafter parameter -> the tensor that fills it, or would: tensors that the engine passes over count, too."""
        found: dict[str, TensorInfo] = {}
        for key, (use, parameter) in self.resolution.tensors.items():
            if parameter and use is Use.LOADED:
                found.setdefault(parameter, self.drafter.checkpoint.tensors[key])
        for key, (_, parameter) in self.resolution.tensors.items():
            if parameter:
                found.setdefault(parameter, self.drafter.checkpoint.tensors[key])
        return found

    @property
    def fc(self) -> TensorInfo | None:
        """fc.weight, unless it is quantised into a shape that says little."""
        tensor = self.parameters.get("fc.weight")
        return None if tensor is None or packed(tensor) else tensor

    @cached_property
    def stored_hidden(self) -> int | None:
        """H as the norms in the files have it, when they agree on another one than the config: told once."""
        norms = [tensor for name, tensor in self.parameters.items() if name in NORMS and len(tensor.shape) == 1]
        sizes = {tensor.shape[0] for tensor in norms}
        if len(norms) < 2 or len(sizes) != 1 or self.drafter.hidden_size.value is None:
            return None
        size = sizes.pop()
        return None if size == self.drafter.hidden_size.value else size

    @property
    def foreign(self) -> bool:
        """fc takes states as wide as the drafter, and the target has another width: it was made for another target."""
        fc, hidden, width = self.fc, self.drafter.hidden_size.value, self.target.hidden_size.value
        if fc is None or len(fc.shape) != 2 or not hidden or self.drafter.target_hidden_size.value:
            return False
        return hidden != width and fc.shape[1] == (self.resolution.states or 3) * hidden

    @property
    def declared_states(self) -> list[int]:
        """How many states the config says that fc takes, wherever it says so."""
        stated = self.drafter.states.value
        return [len(ids) for ids in self.drafter.ids.values()] + ([stated] if stated else [])

    @cached_property
    def miscounted(self) -> tuple[str, ...]:
        """Lists of layer ids that name another number of states than fc takes of the target's."""
        fc, width = self.fc, self.target.hidden_size.value
        if fc is None or len(fc.shape) != 2 or not width:
            return ()
        return tuple(path for path, ids in self.drafter.ids.items() if len(ids) * width != fc.shape[1])

    @cached_property
    def whole_model(self) -> bool:
        """A language model in the drafter's place: nothing fuses states or reads them beside the embedding."""
        if not self.drafter.aux or self.drafter.draft_vocab_size.declared:
            return False
        names = {meant_for(key) for key in self.drafter.checkpoint.tensors}
        if names & {"fc.weight", "midlayer.hidden_norm.weight", "d2t", "t2d"}:
            return False
        hidden = self.drafter.hidden_size.value
        first = next((t for key, t in self.drafter.checkpoint.tensors.items() if meant_for(key) in FIRST_INPUTS), None)
        if first is None or len(first.shape) != 2 or packed(first):
            return (self.drafter.layers.value or 1) > 1
        return first.shape[1] == hidden

    @property
    def reduced(self) -> bool:
        """Whether draft ids are not simply target ids."""
        return self.drafter.vocabulary != self.drafter.vocab_size.value

    @cached_property
    def eagle1(self) -> bool:
        """fc with inputs of 2 x H is the layout of EAGLE-1: embedding beside one state. Everything else then differs,
        too, and only this is told.
        """
        fc, hidden = self.fc, self.drafter.hidden_size.value
        if fc is None or len(fc.shape) != 2 or not hidden or 2 in self.declared_states:
            return False
        wanted = (self.resolution.states or 3) * (self.target.hidden_size.value or hidden)
        return fc.shape[1] == 2 * hidden and fc.shape[1] != wanted

    @cached_property
    def d2t(self) -> Array | None:
        """Offsets [Vd] as integers, when they are there in a form that can be read."""
        return self._small_vector("d2t", INTEGERS)

    @cached_property
    def t2d(self) -> Array | None:
        """Which target ids can be drafted, as booleans [V]."""
        values = self._small_vector("t2d", T2D_DTYPES)
        return None if values is None else values.astype(bool)

    @cached_property
    def header_only(self) -> bool:
        """The drafter's file is a copy of a header: its maps were never written, so their values say nothing."""
        maps = [self.parameters[name] for name in ("d2t", "t2d") if name in self.parameters]
        return bool(maps) and all(unwritten(tensor) for tensor in maps)

    def _small_vector(self, name: str, dtypes: Mapping[str, str]) -> Array | None:
        tensor = self.parameters.get(name)
        if tensor is None or len(tensor.shape) != 1 or tensor.dtype not in dtypes or self.header_only:
            return None
        if tensor.shape[0] > LARGEST_VOCABULARY:  # whatever it is; its length is judged by its header
            return None
        return read_tensor(tensor)


Check = Callable[[Pairing], Iterable[Finding]]
