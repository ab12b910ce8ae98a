"""What SGLang's source does, in the words of sglang.toml."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from verify_tables import capture, drafter, rules
from verify_tables.facts import Fact
from verify_tables.source import Models
from verify_tables.stubs import install

IDS = drafter.IDS
DRAFTERS = {
    "llama": ("sglang.srt.models.llama_eagle3", "LlamaForCausalLMEagle3"),
    "mla": ("sglang.srt.models.kimi_k25_eagle3", "Eagle3DeepseekV2ForCausalLM"),
}


def observe(root: Path, targets: dict[str, str]) -> list[Fact]:
    """`targets`: architecture -> family, as the table has them."""
    models = Models(root / "sglang/srt/models")
    facts = list(_targets(models, targets))
    facts.append(Fact("ids_read", {}, _ids_read(root)))
    facts += [Fact("context", {}, rules.sglang_context(root)), Fact("pipeline", {}, rules.sglang_pipeline(root))]
    known = capture.registered(models)
    install("sglang", root, [module for module, _ in DRAFTERS.values()], {"default_weight_loader": _default_loader})
    for family, (module, name) in DRAFTERS.items():
        facts.append(Fact("drafter", {"architecture": name}, name in known, of="registered"))
        if name in known:
            facts += _drafter(family, getattr(importlib.import_module(module), name))
            facts.append(Fact("own_embedding", {"drafter": family}, rules.own_embedding(models, known[name])))
            file = root / (module.replace(".", "/") + ".py")
            facts.append(Fact("fc_skipped", {"drafter": family}, rules.fc_skipped(file)))
    return facts


def _targets(models: Models, families: dict[str, str]) -> list[Fact]:
    facts = []
    known = capture.registered(models)
    for architecture in sorted(families.keys() | known.keys()):
        target = known.get(architecture)
        hook = target is not None and capture.outcome(models, target, None) is not None
        if architecture not in families:
            if hook and "Assistant" not in architecture:
                facts.append(Fact("hook", {"architecture": architecture}, True, of="not in the table"))
            continue
        keys = {"family": families[architecture], "architecture": architecture}
        facts.append(Fact("hook", keys, hook if target else None))
        if target and hook:
            facts.append(Fact("ids_rule", keys, capture.rule(models, target)))
            facts.append(Fact("default_shift", keys, capture.default_shift(models, target)))
            facts.append(Fact("last", keys, rules.last(models, target)))
    return facts


def _ids_read(root: Path) -> list[list[str]]:
    """Runs the `try` that reads the ids, on configs that hold them in one place or another."""
    places: dict[str, dict[str, Any]] = {
        IDS: {IDS: [7, 8, 9]},
        f"eagle_config.{IDS}": {"eagle_config": {IDS: [7, 8, 9]}},
    }
    return [[place, "by_target"] for place, config in places.items() if _read(root, config) == [7, 8, 9]]


def _read(root: Path, config: dict[str, Any]) -> Any:
    folder = root / "sglang/srt/model_executor"
    for file in [folder / "model_runner_components/spec_aux_hidden_state.py", folder / "model_runner.py"]:
        if not file.exists():
            continue
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Try) and f'"{IDS}"' in ast.unparse(node).replace("'", '"'):
                space = _space(config)
                exec(compile(ast.Module(body=[node], type_ignores=[]), file.name, "exec"), space)
                holders = (space["self"], space["config"], SimpleNamespace(**{IDS: space.get(IDS)}))
                return next((ids for holder in holders if (ids := getattr(holder, IDS, None))), None)
    return None


def _space(config: dict[str, Any]) -> dict[str, Any]:
    draft = SimpleNamespace(hf_config=SimpleNamespace(**config))
    return {"draft_model_config": draft, "self": SimpleNamespace(), "config": SimpleNamespace()}


def _default_loader(parameter: Any, value: Any) -> None:
    parameter.weight_loader(parameter, value)


def _drafter(family: str, made: Any) -> list[Fact]:
    keys = {"drafter": family}
    it = drafter.Drafter(lambda config: made(config), family)
    facts = [
        Fact("names", keys, drafter.names(it)),
        Fact("states", keys, drafter.states(it)),
        Fact("layers_most", keys, drafter.most_layers(it)),
        Fact("draft_vocab_size", keys, drafter.draft_vocab_size(it)),
        Fact("tie", keys, drafter.tie(it)),
        Fact("borrowed_head", keys, _borrowed_head(it)),
    ]
    return facts + [Fact("flag", keys | {"flag": flag}, fields) for flag, fields in drafter.flags(it).items()]


def _borrowed_head(it: drafter.Drafter) -> str:
    """Whether the class asks for the target's head where the config gives it no vocabulary of its own."""
    try:
        asks = getattr(it.made(draft_vocab_size=None), "load_lm_head_from_target", False)
    except TypeError:  # null is taken for a number of rows
        asks = False
    return "draft_vocab_size_null" if asks else "never"
