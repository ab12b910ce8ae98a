"""What vLLM's source does, in the words of vllm.toml."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from verify_tables import drafter, rules
from verify_tables.facts import Fact
from verify_tables.source import Models, function, functions
from verify_tables.stubs import install

IDS = drafter.IDS
MODELS = "vllm.model_executor.models"
DRAFTERS = {
    "llama": (f"{MODELS}.llama_eagle3", "Eagle3LlamaForCausalLM"),
    "qwen3": (f"{MODELS}.qwen3_eagle3", "Eagle3Qwen3ForCausalLM"),
    "mla": (f"{MODELS}.deepseek_eagle3", "Eagle3DeepseekV2ForCausalLM"),
}
TARGET_VOCABULARY = 512


def observe(root: Path, targets: dict[str, str]) -> list[Fact]:
    """`targets`: architecture -> family, as the table has them."""
    registry = Registry(root)
    facts = [*_targets(registry, targets), *_drafter_classes(registry), *_configs(root)]
    facts.append(Fact("ids_read", {}, _ids_read(root)))
    facts += [Fact("context", {}, rules.vllm_context(root)), Fact("own_embedding", {}, rules.vllm_own_embedding(root))]
    for kind, architecture in (("dense", ""), ("hybrid", ""), ("moe", ""), ("moe", "Qwen2MoeForCausalLM")):
        keys = {"kind": kind, "architecture": architecture}
        facts.append(Fact("runner", keys, rules.vllm_runner(root, kind, architecture)))
    files = {family: root / (module.replace(".", "/") + ".py") for family, (module, _) in DRAFTERS.items()}
    real = [module for module, _ in DRAFTERS.values()] + [f"{MODELS}.utils"]
    install("vllm", root, real, {"default_weight_loader": lambda value, weight: value.weight_loader(value, weight)})
    utils: Any = importlib.import_module(f"{MODELS}.utils")  # the loader that looks for a parameter for each tensor
    utils.get_draft_quant_config = lambda settings: None
    utils.process_eagle_weight = lambda model, name: None
    for family, (module, name) in DRAFTERS.items():
        if files[family].exists():
            facts += _drafter(family, importlib.import_module(module), name)
    return facts


class Registry:
    """Architecture -> (file, class), from the literal tables of registry.py."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.models = Models(root / "vllm/model_executor/models")
        self.tables: dict[str, dict[str, Any]] = {}
        for node in ast.walk(self.models.trees["registry"]):
            target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
            if isinstance(target, ast.Name) and isinstance(node.value, ast.Dict):  # type: ignore[attr-defined]
                self.tables[target.id] = self._literal(node.value)  # type: ignore[attr-defined]

    def drafters(self) -> dict[str, str]:
        return {name: where[1] for name, where in self.tables["_SPECULATIVE_DECODING_MODELS"].items()}

    def targets(self) -> dict[str, tuple[str, str]]:
        return {
            name: where
            for table, entries in self.tables.items()
            if "SPECULATIVE" not in table
            for name, where in entries.items()
            if isinstance(where, tuple) and len(where) == 2
        }

    def supports_eagle3(self, where: tuple[str, str]) -> bool:
        """Whether SupportsEagle3 is among the bases, or another's that stand for it."""
        module, name = where
        models = self._package(module) or self.models
        start = models.find(name, module)
        return start is not None and any("SupportsEagle3" in known.bases for known in models.lineage(start))

    def _package(self, module: str) -> Models | None:
        """Of a model that is a folder of files."""
        folder = self.models.folder / module
        if module.startswith("vllm."):
            folder = self.root / module.replace(".", "/")
        return Models(folder, deep=True, beyond=self.models) if folder.is_dir() else None

    @staticmethod
    def _literal(node: ast.Dict) -> dict[str, Any]:
        found = {}
        for key, value in zip(node.keys, node.values, strict=True):
            try:
                found[ast.literal_eval(key)] = ast.literal_eval(value)  # type: ignore[arg-type]
            except (ValueError, TypeError):
                continue
        return found


def _targets(registry: Registry, families: dict[str, str]) -> Iterator[Fact]:
    known = registry.targets()
    for architecture in sorted(families.keys() | known.keys()):
        where = known.get(architecture)
        hook = where is not None and registry.supports_eagle3(where)
        if architecture in families:
            keys = {"family": families[architecture], "architecture": architecture}
            yield Fact("hook", keys, hook if where else None)
            module = registry.models.find(where[1], where[0]) if where and hook else None
            if module is not None:
                yield Fact("pipeline", keys, rules.vllm_pipeline(registry.models, module))
        elif hook:
            yield Fact("hook", {"architecture": architecture}, True, of="not in the table")


def _drafter_classes(registry: Registry) -> Iterator[Fact]:
    ours = {name for _, name in DRAFTERS.values()}
    for architecture, name in sorted(registry.drafters().items()):
        if name in ours:
            yield Fact("drafter", {"architecture": architecture}, name, of="class")


def _configs(root: Path) -> Iterator[Fact]:
    """How a speculators config becomes vLLM's own."""
    file = root / "vllm/transformers_utils/configs/speculators/algos.py"
    update = functions(file)["update_eagle3"]
    for model_type in ("llama", "qwen3", "mistral"):
        config: dict[str, Any] = {"draft_vocab_size": 100}
        made: dict[str, Any] = {"model_type": model_type}
        try:
            function(update, **_module_names(file))(config_dict=config, pre_trained_config=made)
        except ValueError:
            made = {}
        architecture = made.get("architectures", [None])[0]
        yield Fact("speculators", {"model_type": model_type}, architecture)
        if model_type == "llama":
            keys = {"flag": "norm_before_residual", "dialect": "speculators"}
            yield Fact("flag_default", keys, made.get("norm_before_residual"))


def _module_names(file: Path) -> dict[str, Any]:
    """Constants and helper functions of the module, by running what needs no import."""
    space: dict[str, Any] = {"register_speculator": lambda *_: lambda made: made, "__name__": file.stem}
    for node in ast.parse(file.read_bytes()).body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            try:
                exec(compile(ast.Module(body=[node], type_ignores=[]), file.name, "exec"), space)
            except Exception:
                continue
    return space


def _ids_read(root: Path) -> list[list[str]]:
    """Of the model runner that serves EAGLE-3 by default (V2)."""
    read = functions(root / "vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py")["get_eagle3_aux_layers_from_config"]
    places: dict[str, dict[str, Any]] = {
        IDS: {IDS: [7, 8, 9]},
        f"eagle_config.{IDS}": {"eagle_config": {IDS: [7, 8, 9]}},
    }
    found = []
    for place, config in places.items():
        draft = SimpleNamespace(hf_config=SimpleNamespace(**config))
        seen = function(read)(SimpleNamespace(draft_model_config=draft))
        if seen:
            found.append([place, {(7, 8, 9): "verbatim", (8, 9, 10): "plus_one"}.get(tuple(seen), str(seen))])
    return found


def _drafter(family: str, module: Any, name: str) -> list[Fact]:
    keys = {"drafter": family}

    def build(config: SimpleNamespace) -> Any:
        config.architectures = [name]
        settings = _settings(config)
        module.get_current_vllm_config = lambda: settings
        return getattr(module, name)(vllm_config=settings)

    it = drafter.Drafter(build, family)
    facts = [
        Fact("names", keys, drafter.names(it)),
        Fact("states", keys, drafter.states(it)),
        Fact("layers_most", keys, drafter.most_layers(it)),
        Fact("draft_vocab_size", keys, drafter.draft_vocab_size(it)),
        Fact("tie", keys, drafter.tie(it)),
        Fact("d2t_of_full", keys, _d2t_of_full(it)),
    ]
    return facts + [Fact("flag", keys | {"flag": flag}, fields) for flag, fields in drafter.flags(it).items()]


def _d2t_of_full(it: drafter.Drafter) -> str:
    try:
        it.loads(["d2t"], draft_vocab_size=TARGET_VOCABULARY)
    except Exception:
        return "refused"
    return "harmless"


def _settings(config: SimpleNamespace) -> SimpleNamespace:
    """The parts of vLLM's configuration that the drafters look at."""
    model = SimpleNamespace(
        hf_config=config,
        dtype=None,
        get_total_num_hidden_layers=lambda: 8,
        get_num_layers=lambda parallel: 8,
        get_vocab_size=lambda: TARGET_VOCABULARY,
    )
    speculative = SimpleNamespace(
        draft_model_config=SimpleNamespace(hf_config=config, quantization=None),
        parallel_drafting=False,
        method="eagle3",
    )
    return SimpleNamespace(
        model_config=model,
        speculative_config=speculative,
        hf_config=config,
        hidden_size=config.hidden_size,
        parallel_config=SimpleNamespace(pipeline_parallel_size=1),
        cache_config=None,
        quant_config=None,
        intermediate_size=config.intermediate_size,
    )
