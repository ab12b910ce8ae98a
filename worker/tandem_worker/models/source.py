"""Where the parameters of a target lie in its files, and how stored values become weights.

A model names its parameters as Llama's files do: `model.embed_tokens.weight`, `model.layers.3...`, `lm_head.weight`.
Multimodal checkpoints put the language model behind a prefix. A quantised parameter is several tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from tandem_worker.checkpoint import Checkpoint, CheckpointError, TensorInfo
from tandem_worker.checkpoint.config import Config
from tandem_worker.checkpoint.errors import error, listed
from tandem_worker.models.quantised import mxfp4, scaled, unpacked
from tandem_worker.models.reader import rows_of

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
LAYOUTS = (  # what stands in the files for `model.`, and what for `lm_head.`
    ("model.", "lm_head."),
    ("language_model.model.", "language_model.lm_head."),
    ("model.language_model.", "lm_head."),
)
EIGHT_BITS = ("F8_E4M3", "F8_E5M2", "I8")
SCALES = ("weight_scale_inv", "weight_scale")
BLOCK = (128, 128)  # DeepSeek's
STACKED = re.compile(r"(?P<experts>.*\.experts\.)(?P<expert>\d+)\.(?P<name>\w+)")  # gpt-oss
# Other libraries' ways (AWQ, GPTQ, NVFP4, asymmetric or reordered integers), by a tensor that gives them away.
FOREIGN = ("qweight", "qzeros", "weight_zero_point", "weight_g_idx", "weight_scale_2", "weight_global_scale")


class Stored(NamedTuple):
    """A parameter and the tensors of the files that it is made of: the values, then the scale of quantised ones."""

    parameter: str
    parts: tuple[TensorInfo, ...]
    shape: tuple[int, ...]
    block: tuple[int, int] = BLOCK

    @property
    def size_bytes(self) -> int:
        return sum(part.end - part.start for part in self.parts)

    def weight(self, tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
        """From the parts as they are stored, on any device, to the weight in `dtype`."""
        values, *scale = tensors
        if not scale:
            return values.view(self.shape).to(dtype)
        if values.dtype == torch.uint8:
            return mxfp4(values[0], scale[0][0]).T.to(dtype)  # stored outputs first, used inputs first
        if values.dtype == torch.int32:
            return unpacked(values, scale[0], self.shape).to(dtype)
        return scaled(values, scale[0], self.block).to(dtype)


class Source:
    """The parameters of one checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        found = [layout for layout in LAYOUTS if f"{layout[0]}embed_tokens.weight" in checkpoint.tensors]
        self._body, self._head = found[0] if found else LAYOUTS[0]
        self._block = _block(checkpoint.config)
        # Every expert's tensors are looked up before the first layer runs: half a million questions for a large target.
        self._shards = {name: shard.tensors for shard in checkpoint.shards for name in shard.tensors}

    def stored(self, parameters: Iterable[tuple[str, tuple[int, ...]]]) -> list[Stored]:
        """Of parameters by name and shape.

        Raises CheckpointError (CouldNotCheck) that names what the files lack, hold in another shape, or hold quantised
        in a way that is not read here.
        """
        result, missing = [], []
        for name, shape in parameters:
            parts = self._parts(self.key(name), shape)
            if parts is None:
                missing.append(self.key(name))
            else:
                result.append(Stored(name, parts, shape, self._block))
        if missing:
            message = f"The target {self.checkpoint.path} lacks {listed(missing)}."
            action = "Restore the checkpoint, or correct num_hidden_layers or tie_word_embeddings in its config."
            raise CheckpointError(
                error("TDM-PARAMETER-MISSING", message, file=self.checkpoint.path, where=missing[0], action=action)
            )
        return result

    def key(self, parameter: str) -> str:
        """The parameter's name in the files."""
        if parameter.startswith("model."):
            return self._body + parameter.removeprefix("model.")
        return self._head + parameter.removeprefix("lm_head.")

    def _find(self, name: str) -> TensorInfo | None:
        shard = self._shards.get(name)
        return shard[name] if shard is not None else None

    def _parts(self, key: str, shape: tuple[int, ...]) -> tuple[TensorInfo, ...] | None:
        module = key.removesuffix("weight")
        info = self._find(key)
        if info is not None:
            if info.shape != shape:
                raise shape_differs(info, shape)
            if info.dtype not in EIGHT_BITS:
                return (info,)
            for name in SCALES:
                scale = self._find(module + name)
                if scale is not None:
                    return (info, scale)
            raise _not_read(info, f"is {info.dtype} without a scale")
        for name in FOREIGN:
            foreign = self._find(module + name)
            if foreign is not None:
                raise _not_read(foreign, "belongs to a quantisation that is not read here")
        stacked = STACKED.fullmatch(key)
        if stacked:
            return self._slice(stacked["experts"] + stacked["name"], int(stacked["expert"]), shape)
        packed, scale = self._find(f"{module}weight_packed"), self._find(f"{module}weight_scale")
        if packed is None:
            return None
        shapes = {(shape[0], -(-shape[-1] // per_word)) for per_word in (4, 8)}
        whole = scale is not None and scale.shape[:1] == shape[:1] and shape[-1] % scale.shape[-1] == 0
        if scale is None or not whole or packed.dtype != "I32" or packed.shape not in shapes:
            raise _not_read(packed, f"is {packed.dtype} {list(packed.shape)} for a matrix of {list(shape)}")
        return (packed, scale)

    def _slice(self, key: str, expert: int, shape: tuple[int, ...]) -> tuple[TensorInfo, ...] | None:
        """One expert's part of tensors in which all experts lie behind each other."""
        plain, blocks, scales = (self._find(key + ending) for ending in ("", "_blocks", "_scales"))
        if plain is None and blocks is not None and scales is not None:
            whole = (*shape[::-1][:1], shape[0] // 32, 16)
            found = [(blocks, whole, "U8"), (scales, whole[:2], "U8")]
        elif plain is not None:
            found = [(plain, shape, plain.dtype)]
        else:
            return None
        for info, expected, dtype in found:
            if info.shape[1:] != expected or info.shape[0] <= expert or info.dtype != dtype:
                raise shape_differs(info, (expert + 1, *expected))
        return tuple(rows_of(info, expert, expert + 1) for info, _, _ in found)


def _block(config: Config) -> tuple[int, int]:
    for level in (config.nested("text_config"), config):
        size = level.nested("quantization_config").raw("weight_block_size")
        if isinstance(size, list) and len(size) == 2 and all(isinstance(step, int) and step > 0 for step in size):
            return size[0], size[1]
    return BLOCK


def _not_read(info: TensorInfo, what: str) -> CheckpointError:
    finding = error(
        "TDM-QUANTIZATION-NOT-READ",
        f"{info.name} {what}.",
        file=info.file,
        where=info.name,
        found=f"{info.dtype} {list(info.shape)}",
        expected="floats, INT4 or INT8 packed by compressed-tensors (symmetric), FP8 or INT8 with scales",
        action="Probe the unquantised checkpoint: drafters are trained on its states.",
    )
    return CheckpointError(finding)


def shape_differs(info: TensorInfo, expected: tuple[int, ...]) -> CheckpointError:
    finding = error(
        "TDM-SHAPE-DIFFERS",
        f"{info.name} in {info.file.name} is {list(info.shape)}; by the config it must be {list(expected)}.",
        file=info.file,
        where=info.name,
        found=list(info.shape),
        expected=list(expected),
        action="Use the config.json that was published with these weights.",
    )
    return CheckpointError(finding)
