"""Where the parameters of a target lie in its files. What can not be read is refused here, for the static checks, the
probe and the engine alike; `models.quantised` makes weights of what is found.

A model names its parameters as Llama's files do: `model.embed_tokens.weight`, `model.layers.3...`, `lm_head.weight`.
Multimodal checkpoints put the language model behind a prefix. A quantised parameter is several tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import NamedTuple

from tandem_worker.checkpoint.config import Config
from tandem_worker.checkpoint.errors import CheckpointError, error, listed
from tandem_worker.checkpoint.folder import Checkpoint
from tandem_worker.checkpoint.header import Shape, TensorInfo, rows_of
from tandem_worker.checkpoint.tensors import FLOATS
from tandem_worker.finding import Finding

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
LAYOUTS = (  # what stands in the files for `model.`, and what for `lm_head.`
    ("model.", "lm_head."),
    ("language_model.model.", "language_model.lm_head."),
    ("model.language_model.", "lm_head."),
)
EIGHT_BITS = ("F8_E4M3", "F8_E5M2", "I8")
SCALES = ("weight_scale_inv", "weight_scale")
SCALE_DTYPES = (*FLOATS, "F8_E8M0")
BLOCK = (128, 128)  # DeepSeek's
UNAPPLIED = ("input_scale", "input_zero_point", "output_scale", "q_scale", "k_scale", "v_scale", "kv_scale")
"""Of quantised activations and KV caches: other engines' kernels need them, here nothing but weights is quantised."""
STACKED = re.compile(r"(?P<experts>.*\.experts\.)(?P<expert>\d+)\.(?P<name>\w+)")  # gpt-oss
# Other libraries' ways (AWQ, GPTQ, NVFP4, asymmetric or reordered integers), by a tensor that gives them away.
FOREIGN = ("qweight", "qzeros", "weight_zero_point", "weight_g_idx", "weight_scale_2", "weight_global_scale")


class Stored(NamedTuple):
    """A parameter and the tensors of the files that it is made of: the values, then the scale of quantised ones."""

    parameter: str
    parts: tuple[TensorInfo, ...]
    shape: Shape
    block: tuple[int, int] = BLOCK

    @property
    def size_bytes(self) -> int:
        return sum(part.end - part.start for part in self.parts)


class Source:
    """The parameters of one checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        found = [layout for layout in LAYOUTS if f"{layout[0]}embed_tokens.weight" in checkpoint.tensors]
        self._body, self._head = found[0] if found else LAYOUTS[0]
        self._block = _block(checkpoint.config)
        # Every expert's tensors are looked up before the first layer runs: half a million questions for a large target.
        self._shards = {name: shard.tensors for shard in checkpoint.shards for name in shard.tensors}

    def stored(self, parameters: Iterable[tuple[str, Shape]]) -> list[Stored]:
        """Of parameters by name and shape.

        Raises CheckpointError (CouldNotCheck) that names what the files lack, hold in another shape, or hold quantised
        in a way that is not read here; one finding for each kind, because the layers are all wrong in the same way.
        """
        result, missing = [], list[str]()
        refused: dict[tuple[str, str], list[Finding]] = {}
        for name, shape in parameters:
            try:
                parts = self._parts(self.key(name), shape)
                if name in (EMBEDDING, HEAD) and parts and len(parts) > 1:
                    raise _not_read(parts[0], "is quantised; embedding and head are read as floats only")
            except CheckpointError as failure:
                kind = re.sub(r"\.\d+\.", ".", name)
                refused.setdefault((failure.finding.code, kind), []).append(failure.finding)
                continue
            if parts is None:
                missing.append(self.key(name))
            else:
                result.append(Stored(name, parts, shape, self._block))
        findings = [self._missing(missing)] if missing else []
        findings += _rotations(self.checkpoint.config)
        findings += [_and_more(alike) for alike in refused.values()]
        if findings:
            raise CheckpointError(*findings)
        return result

    def _missing(self, keys: list[str]) -> Finding:
        message = f"The target {self.checkpoint.path} lacks {listed(keys)}, which its config implies."
        action = (
            "Restore the checkpoint (are all shards there?), or correct num_hidden_layers or tie_word_embeddings in "
            "its config."
        )
        return error("TDM-PARAMETER-MISSING", message, file=self.checkpoint.path, where=keys[0], action=action)

    def key(self, parameter: str) -> str:
        """The parameter's name in the files."""
        if parameter.startswith("model."):
            return self._body + parameter.removeprefix("model.")
        return self._head + parameter.removeprefix("lm_head.")

    def _find(self, name: str) -> TensorInfo | None:
        shard = self._shards.get(name)
        return shard[name] if shard is not None else None

    def _parts(self, key: str, shape: Shape) -> tuple[TensorInfo, ...] | None:
        module = key.removesuffix("weight")
        info = self._find(key)
        if info is not None:
            if info.dtype not in (*FLOATS, *EIGHT_BITS):
                raise _not_read(info, f"is stored as {info.dtype}")
            if info.shape != shape:
                raise shape_differs(info, shape)
            return (info,) if info.dtype in FLOATS else (info, self._scale(info, module))
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
        if scale is None or packed.dtype != "I32" or packed.shape not in shapes:
            raise _not_read(packed, f"is {packed.dtype} {list(packed.shape)} for a matrix of {list(shape)}")
        groups = scale.shape[1] if len(scale.shape) == 2 and scale.shape[0] == shape[0] else 0
        if scale.dtype not in FLOATS or not groups or shape[-1] % groups:
            raise _not_read(scale, f"is {scale.dtype} {list(scale.shape)} for a matrix of {list(shape)}")
        return (packed, scale)

    def _scale(self, info: TensorInfo, module: str) -> TensorInfo:
        """Of values of 8 bits: one for all, for each output, or for each block (the last one may be cut off)."""
        scale = next(filter(None, (self._find(module + name) for name in SCALES)), None)
        offset = self._find(f"{module}weight_zero_point") if info.dtype == "I8" else None
        if scale is None or offset is not None:
            raise _not_read(info, f"is {info.dtype} " + ("without a scale" if scale is None else "with a zero point"))
        if scale.dtype not in SCALE_DTYPES or not _covers(scale.shape, info.shape, self._block):
            raise _not_read(scale, f"is {scale.dtype} {list(scale.shape)} for a matrix of {list(info.shape)}")
        return scale

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


def _covers(scale: Shape, matrix: Shape, block: tuple[int, int]) -> bool:
    """One for all, one for each output, or a grid that has for each dimension one, all, or one for each block."""
    if len(matrix) != 2 or len(scale) > 2:
        return False
    if len(scale) < 2:
        return prod(scale) == 1 or scale == matrix[:1]
    return all(n in (1, size, -(-size // step)) for n, size, step in zip(scale, matrix, block, strict=True))


def _quantizations(config: Config) -> tuple[Config, ...]:
    return tuple(level.nested("quantization_config") for level in (config.nested("text_config"), config))


def _rotations(config: Config) -> Iterable[Finding]:
    """compressed-tensors' transforms: activations are to be rotated, too, while the model runs (SpinQuant, QuIP)."""
    for method in _quantizations(config):
        if method.raw("transform_config"):
            yield error(
                "TDM-QUANTIZATION-NOT-READ",
                "The target's quantization_config has a transform_config: activations are to be rotated as well, which "
                "is not done here.",
                file=config.file,
                where="quantization_config.transform_config",
                expected="weights that are quantised as they are",
                action="Use a checkpoint that was quantised without rotations, or another engine.",
            )


def _block(config: Config) -> tuple[int, int]:
    for method in _quantizations(config):
        size = method.raw("weight_block_size")
        if isinstance(size, list) and len(size) == 2 and all(isinstance(step, int) and step > 0 for step in size):
            return size[0], size[1]
    return BLOCK


def _and_more(alike: list[Finding]) -> Finding:
    first, more = alike[0], len(alike) - 1
    return replace(first, message=f"{first.message} {more} more of its kind likewise.") if more else first


def _not_read(info: TensorInfo, what: str) -> CheckpointError:
    finding = error(
        "TDM-QUANTIZATION-NOT-READ",
        f"{info.name} {what}.",
        file=info.file,
        where=info.name,
        found=f"{info.dtype} {list(info.shape)}",
        expected="floats, INT4 or INT8 packed by compressed-tensors (symmetric), FP8 or INT8 with scales",
        action="Use the unquantised checkpoint (drafters are trained on its states), or another engine.",
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
