"""Facts that no class shows when it is made: seen in what the sources of an engine say, by their syntax.

Each looks for the statement that makes the difference, not for a version. A statement that is gone makes a difference
to the table, which somebody then reads.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from verify_tables.source import ClassDef, Models, function, functions

NEVER, CAPTURED = "is never captured: one state fewer reaches fc", "captured"
INDEX_ERROR = "ends start-up in an IndexError"


def last(models: Models, target: ClassDef) -> str:
    """What SGLang makes of capture index n: a look at it behind the loop over the layers, a layer that is marked by
    its index, or neither."""
    found = {_last_in(models.trees[module]) for module in _decoders(models, target)}
    return CAPTURED if CAPTURED in found else INDEX_ERROR if INDEX_ERROR in found else NEVER


def _decoders(models: Models, target: ClassDef) -> set[str]:
    """The files of the classes that the target is, holds, or inherits from."""
    seen: set[tuple[str, str]] = set()
    waiting = [target]
    while waiting:
        for known in models.lineage(waiting.pop()):
            if known.module not in models.trees or (known.module, known.node.name) in seen:
                continue
            seen.add((known.module, known.node.name))
            waiting += _held(models, known)
    return {module for module, _ in seen}


def _held(models: Models, known: ClassDef) -> list[ClassDef]:
    """Classes that it makes for `self.model` and the like."""
    made = []
    for node in ast.walk(known.node):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("self.model", "self.language_model"):
            names = [each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)]
            made += [found for name in names if (found := models.find(name, known.module))]
    return made


def _last_in(tree: ast.Module) -> str:
    loops = {name.id for node in ast.walk(tree) if isinstance(node, ast.For) for name in _names(node.target)}
    marked = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and _beyond_a_loop(node, loops):
            return CAPTURED
        if isinstance(node, ast.For) and "layers_to_capture" in ast.unparse(node.iter):
            marked |= ".layers[" in ast.unparse(node)
    return INDEX_ERROR if marked else NEVER


def _beyond_a_loop(node: ast.Compare, loops: set[str]) -> bool:
    """`… in self.layers_to_capture` of something that is no loop's variable."""
    asked = re.search(r" in self(\.model)?\.layers_to_capture$", ast.unparse(node)) is not None
    return asked and not (isinstance(node.left, ast.Name) and node.left.id in loops)


def _names(node: ast.expr) -> list[ast.Name]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Name)]


def fc_skipped(file: Path) -> str:
    """Whether fc is applied only where its input has another width than the embedding."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.If) and "self.fc(" in ast.unparse(node) and ".shape[-1] !=" in ast.unparse(node.test):
            return "equal_width"
    return "never"


def own_embedding(models: Models, drafter: ClassDef) -> str:
    """Runs `set_embed`, with which SGLang hands the target's embedding to the drafter."""
    found = models.method(drafter, "set_embed")
    if found is None:
        return "kept"
    embedding = object()
    model = SimpleNamespace(embed_tokens=SimpleNamespace(weight=None))
    it: Any = SimpleNamespace(config=SimpleNamespace(hidden_size=8), model=model)
    nothing = SimpleNamespace(empty_cache=lambda: None, synchronize=lambda: None)
    torch = SimpleNamespace(cuda=nothing, xpu=nothing)
    names: dict[str, Any] = {
        "torch": torch,
        "current_platform": nothing,
        "_is_xpu": False,
        "_is_cpu": False,
        "_is_npu": False,
    }
    function(found[1], **names)(it, embedding)
    return "overwritten" if model.embed_tokens.weight is embedding else "kept"


def sglang_context(root: Path) -> str:
    """Whether a served length beyond the drafter's is refused unless a variable allows it."""
    text = (root / "sglang/srt/configs/model_config.py").read_text()
    allowed_unasked = re.search(r'"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", default="True"', text)
    return "untrained" if allowed_unasked or "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN" not in text else "must_reach"


def sglang_pipeline(root: Path) -> str:
    """Whether speculation over several pipeline stages is refused."""
    for name in ("server_args.py", "arg_groups/validation_hook.py"):
        file = root / "sglang/srt" / name
        for node in ast.walk(ast.parse(file.read_bytes())) if file.exists() else ():
            said = ast.unparse(node).lower() if isinstance(node, ast.Assert | ast.Raise) else ""
            if "pipeline parallel" in said and "specul" in said and "watermark" not in said:
                return "refused"
    return "needs_embedding"


def vllm_context(root: Path) -> str:
    raised = "_maybe_override_draft_max_position_embeddings" in functions(root / "vllm/config/speculative.py")
    return "raised" if raised else "out_of_bounds"


def vllm_own_embedding(root: Path) -> str:
    """Whether a drafter that says it has an embedding of its own keeps it."""
    file = root / "vllm/v1/worker/gpu/spec_decode/eagle/utils.py"
    return "kept" if file.exists() and "has_own_embed_tokens" in file.read_text() else "overwritten"


def vllm_runner(root: Path, kind: str, architecture: str = "") -> str:
    """Which model runner a target of this kind gets, as `use_v2_model_runner` chooses."""
    file = root / "vllm/config/vllm.py"
    choose = functions(file).get("_is_default_v2_model_runner_model")
    if choose is None:
        return "v2"
    listed: list[Any] = [
        ast.literal_eval(node.value.args[0])
        for node in ast.parse(file.read_bytes()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES"
        if isinstance(node.value, ast.Call)
    ]
    model = SimpleNamespace(
        runner_type="generate",
        is_hybrid=kind == "hybrid",
        is_attention_free=False,
        architectures=[architecture],
        is_moe=kind == "moe",
    )
    names: dict[str, Any] = {"DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES": frozenset(*listed)}
    return "v2" if function(choose, **names)(SimpleNamespace(model_config=model)) else "v1"


def vllm_pipeline(models: Models, target: ClassDef) -> str:
    """By the flag of the decoder class, where this version has it; before, the first runner takes over."""
    if not any(_flag(known) is not None for known in models.classes.values() if known.module == "interfaces"):
        return "needs_embedding"
    modules = [known.module for known in models.lineage(target)]
    for module in modules:
        decoders = [
            known for (near, name), known in models.classes.items() if near == module and name.endswith("Model")
        ]
        for decoder in decoders:
            flags = [flag for known in models.lineage(decoder) if (flag := _flag(known)) is not None]
            if flags and any(known.module != "interfaces" for known in models.lineage(decoder)):
                return "needs_embedding" if flags[0] else "refused"
    return "refused"


def _flag(known: ClassDef) -> bool | None:
    for node in known.node.body:
        name = ast.unparse(node.target) if isinstance(node, ast.AnnAssign) else ""
        name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else name
        if name == "supports_aux_hidden_states_over_pp":
            return bool(ast.literal_eval(node.value))  # type: ignore[attr-defined]
    return None
