"""Runs a target class's own `set_eagle3_layers_to_capture` and says in the table's words what it makes of layer ids."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

from verify_tables.source import ClassDef, Models, function

HOOK = "set_eagle3_layers_to_capture"
LAYERS = 61
PROBES = ([1, 29, 57], [2, 30, 58], [3, 30, LAYERS])


class Recorder:
    """Stands for the model and all its parts: takes note of what is to be captured."""

    def __init__(self, record: dict[str, Any] | None = None) -> None:
        config = SimpleNamespace(num_hidden_layers=LAYERS, num_layers=LAYERS)
        config.text_config = config.llm_config = config
        self.__dict__.update(record=record if record is not None else {}, config=config)
        self.__dict__["pp_group"] = SimpleNamespace(is_last_rank=True)

    def __getattr__(self, name: str) -> Any:
        if name == HOOK:
            return lambda *args, **kwargs: self.record.update(passed=(args or tuple(kwargs.values()))[0])
        return self.__dict__.setdefault(name, Recorder(self.record))

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value
        if name == "layers_to_capture":
            self.record["captured"] = value

    def __getitem__(self, key: object) -> Recorder:
        return Recorder(self.record)

    def __call__(self, *args: object, **kwargs: object) -> Recorder:
        return self

    def __len__(self) -> int:
        return LAYERS


def outcome(models: Models, target: ClassDef, ids: list[int] | None) -> list[int] | None:
    """Capture indexes; None when the class has no hook, or hands on to a part that has none."""
    found = models.method(target, HOOK)
    if found is None:
        return None
    owner, node = found
    recorder = Recorder()
    names = {name: Recorder() for name in ("logger", "get_pp_group", "get_parallel", "get_tensor_model_parallel_rank")}
    function(node, **names)(recorder, ids)
    if "captured" in recorder.record:
        return list(recorder.record["captured"])
    inner = inner_model(models, target) or inner_model(models, owner)
    if inner is not None:
        return outcome(models, inner, recorder.record.get("passed"))
    passed = recorder.record.get("passed")
    return list(passed) if passed is not None else None  # handed to the bare decoder, which takes it as it is


def inner_model(models: Models, owner: ClassDef) -> ClassDef | None:
    """The class of `self.language_model`, where a wrapper hands the call on to one."""
    for known in models.lineage(owner):
        for node in ast.walk(known.node):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "self.language_model":
                for call in ast.walk(node.value):
                    name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
                    made = models.find(name, known.module)
                    if made and models.method(made, HOOK):
                        return made
    return None


def rule(models: Models, target: ClassDef) -> str:
    """`plus_one`, `verbatim`, `plus_one_if_first_is_1`, `verbatim_if_last_is_n`, or the outcomes as they are."""
    one, two, last = (outcome(models, target, ids) for ids in PROBES)
    shifted = [[i + 1 for i in ids] for ids in PROBES]
    names: dict[tuple[int, ...], str] = {
        (0, 0, 0): "verbatim",
        (1, 1, 1): "plus_one",
        (1, 0, 0): "plus_one_if_first_is_1",
        (1, 1, 0): "verbatim_if_last_is_n",
    }
    signs = tuple(
        0 if seen == ids else 1 if seen == more else 2
        for seen, ids, more in zip((one, two, last), PROBES, shifted, strict=True)
    )
    return names.get(signs, f"{PROBES} -> {[one, two, last]}")


def default_shift(models: Models, target: ClassDef) -> int | str:
    """How far the default list is from [2, n // 2, n - 3]."""
    seen = outcome(models, target, None) or []
    shifts = {i - usual for i, usual in zip(seen, (2, LAYERS // 2, LAYERS - 3), strict=False)}
    return shifts.pop() if len(shifts) == 1 and len(seen) == 3 else str(seen)


def registered(models: Models) -> dict[str, ClassDef]:
    """Architecture -> class, as SGLang's registry finds them: what each file lists in `EntryClass`."""
    found: dict[str, ClassDef] = {}
    for module, tree in models.trees.items():
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EntryClass":
                names = [item.id for item in ast.walk(node.value) if isinstance(item, ast.Name)]
                found |= {name: known for name in names if (known := models.classes.get((module, name)))}
    return found
