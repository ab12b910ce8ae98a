"""Does Tandem read a speculators checkpoint as the speculators library does, and what its converter writes?

    python -m verify_tables.speculators

The library is taken from its wheel and not installed: it wants an older torch than this project's, and half a dozen
large packages that neither its config classes nor its EAGLE-3 converter use. Those are replaced by empty modules, in
this process only. The result is committed beside this file.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import itertools
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import transformers

from tandem_worker.checkpoint.declared import DeclaredDrafter, read_declared_drafter
from tandem_worker.checkpoint.folder import Checkpoint, open_checkpoint
from tandem_worker.checkpoint.tensors import read_tensor
from verify_tables.wheels import sources

VERSION = "0.9.0"
RESULT = Path(__file__).parent / "speculators.json"
PAIR = Path(__file__).parents[2] / "examples" / "tiny-pair"
UNUSED = ("datasets", "hs_connectors", "loguru", "openai", "psutil", "pydantic_settings", "torchvision")

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
SIZES = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_positions",
}
LAYER: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "vocab_size": 96,
    "max_position_embeddings": 512,
}
THETAS: Sequence[Mapping[str, Any]] = (
    {"rope_theta": 500000.0},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    {},
)
TOPS: Sequence[Mapping[str, Any]] = (
    {"draft_vocab_size": 48},
    {"draft_vocab_size": 48, "norm_before_residual": True, "target_hidden_size": 128},
    {"draft_vocab_size": 96, "norm_before_residual": False, "eagle_aux_hidden_state_layer_ids": [1, 5, 9]},
    {"draft_vocab_size": 48, "norm_before_fc": True, "norm_output": True, "target_hidden_size": None},
    {"draft_vocab_size": 48, "fc_norm": True, "eagle_aux_hidden_state_layer_ids": None},
)


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules in the place of packages that are imported and, here, not used."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        unused = name.split(".")[0] in UNUSED
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if unused else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return MagicMock(name=spec.name, __path__=[], __spec__=spec, __name__=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def main() -> int:
    """Exit status 1 when the two read anything differently."""
    sys.path.insert(0, str(sources("speculators", VERSION)))
    sys.meta_path.append(Absent())
    library = importlib.import_module("speculators")
    cases = [_configs(library, kind) for kind in ("llama", "qwen3")] + [_converted(library)]
    compared, differences = sum(case["compared"] for case in cases), [d for case in cases for d in case["differences"]]
    result = {"speculators": VERSION, "transformers": transformers.__version__, "cases": cases}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(f"speculators {VERSION}: {compared} values compared, {len(differences)} differ")
    for difference in differences:
        print(f"    {difference}")
    return 1 if differences else 0


def _configs(library: ModuleType, kind: str) -> dict[str, Any]:
    """The same config.json, in all combinations, through the library's class and through ours."""
    comparison = Comparison(f"configs of {kind} layers")
    for top, theta, head_dim in itertools.product(TOPS, THETAS, (True, False)):
        layer = {**LAYER, **theta, "model_type": kind}
        if not head_dim:
            del layer["head_dim"]
        fixed = {"speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"]}
        config = {**fixed, **top, "transformer_layer_config": layer}
        with tempfile.TemporaryDirectory() as scratch:
            ours = read_declared_drafter(_written(Path(scratch, "drafter"), config))
        comparison.add(json.dumps(top | theta), ours, library.Eagle3SpeculatorConfig.from_dict(config))
    return comparison.told()


def _written(folder: Path, config: Mapping[str, Any]) -> Checkpoint:
    """With the smallest file of weights that there is: these comparisons are of configs."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({"norm.weight": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    return open_checkpoint(folder)


def _converted(library: ModuleType) -> dict[str, Any]:
    """The tiny pair's drafter through the library's converter: the same drafter, in our eyes, before and after."""
    comparison = Comparison("the tiny pair, converted")
    converter = importlib.import_module("speculators.convert.eagle.eagle3_converter").Eagle3Converter()
    before = read_declared_drafter(open_checkpoint(PAIR / "drafter"))
    ids = next(iter(before.ids.values()), None)
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "converted")
        residual = before.flags.get("norm_before_residual", False)
        converter.convert(
            PAIR / "drafter",
            out,
            str(PAIR / "target"),
            validate=False,
            norm_before_residual=residual,
            eagle_aux_hidden_state_layer_ids=list(ids) if ids else None,
        )
        after = read_declared_drafter(open_checkpoint(out))
        comparison.add("config", after, library.Eagle3SpeculatorConfig.from_pretrained(out))
        comparison.value("dialect", after.dialect, "speculators")
        for name in ("hidden_size", "heads", "kv_heads", "head_dim", "vocab_size", "draft_vocab_size"):
            comparison.value(name, getattr(after, name).value, getattr(before, name).value)
        comparison.value("rope theta", after.rope.theta.value, before.rope.theta.value)
        names = {name.replace("midlayer.", "layers.0."): name for name in before.checkpoint.tensors}
        comparison.value("tensors", sorted(after.checkpoint.tensors), sorted(names))
        for name in sorted(names.keys() & after.checkpoint.tensors.keys()):
            ours, theirs = (
                read_tensor(after.checkpoint.tensors[name]),
                read_tensor(before.checkpoint.tensors[names[name]]),
            )
            comparison.value(f"bytes of {name}", ours.tobytes() == theirs.tobytes(), True)
    return comparison.told()


class Comparison:
    def __init__(self, of: str) -> None:
        self._of = of
        self._compared = 0
        self._differences: list[str] = []

    def value(self, what: str, ours: object, theirs: object) -> None:
        self._compared += 1
        if ours != theirs:
            self._differences.append(f"{self._of}: {what}: {ours!r} here, {theirs!r} there")

    def add(self, what: str, ours: DeclaredDrafter, theirs: Any) -> None:
        layer = theirs.transformer_layer_config
        for name, ours_name in SIZES.items():
            self.value(f"{what}: {name}", getattr(ours, ours_name).value, getattr(layer, name))
        self.value(f"{what}: rope theta", ours.rope.theta.value, layer.rope_parameters["rope_theta"])
        self.value(f"{what}: draft_vocab_size", ours.draft_vocab_size.value, theirs.draft_vocab_size)
        self.value(f"{what}: target_hidden_size", ours.target_hidden_size.value, theirs.target_hidden_size)
        ids = ours.ids.get("eagle_aux_hidden_state_layer_ids")
        self.value(f"{what}: layer ids", list(ids) if ids else None, theirs.eagle_aux_hidden_state_layer_ids)
        for flag in FLAGS:
            self.value(f"{what}: {flag}", ours.flags.get(flag, False), getattr(theirs, flag))

    def told(self) -> dict[str, Any]:
        return {"of": self._of, "compared": self._compared, "differences": self._differences}


if __name__ == "__main__":
    raise SystemExit(main())
