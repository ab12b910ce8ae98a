"""What must hold for any bytes at all. A target raises when it does not; atheris then keeps the input."""

from __future__ import annotations

import struct
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tandem_worker.checkpoint import Checkpoint, CheckpointError, TensorInfo, strict_json
from tandem_worker.checkpoint.config import Config
from tandem_worker.checkpoint.declared import read_declared_drafter, read_declared_target
from tandem_worker.checkpoint.header import LARGEST_HEADER_BYTES, parse_shard
from tandem_worker.checks.judge import judge
from tandem_worker.checks.pairing import Pairing
from tandem_worker.engines import load
from tandem_worker.finding import Severity

ENGINES = [load(spec) for spec in ("sglang@0.5.23", "vllm@0.33.0", "builtin", "any")]
TARGET: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "num_hidden_layers": 8,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}


class Watched(BytesIO):
    """A file that nobody may read beyond its end or in larger pieces than a header may be."""

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None
        assert 0 <= size <= LARGEST_HEADER_BYTES, f"read of {size} bytes"
        return super().read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        assert whence == 0, "a place that depends on nothing but the header"
        assert 0 <= offset <= len(self.getbuffer()), f"seek to {offset}"
        return super().seek(offset, whence)


def header(data: bytes) -> None:
    """A header is refused with a finding, or accounts for every byte of the file."""
    framed = data[1:] if data[:1] < b"\x80" else struct.pack("<Q", max(len(data) - 1, 0)) + data[1:]
    try:
        shard = parse_shard(Watched(framed), len(framed), Path("x.safetensors"))
    except CheckpointError as failure:
        _told(failure)
        return
    tensors = sorted((tensor.start, tensor.end) for tensor in shard.tensors.values())
    assert tensors[-1][1] == len(framed)
    assert all(before[1] == after[0] for before, after in pairwise(tensors))


def json(data: bytes) -> None:
    """The quick reading and the slow one agree, to the order of keys and the kind of each number."""
    assert _reading(strict_json.parse, data) == _reading(strict_json._parse_slowly, data)


def config(data: bytes) -> None:
    """Any JSON object, as a drafter's config and as a target's, ends in a verdict: no fault of the validator's own."""
    try:
        values = strict_json.parse(data)
    except strict_json.JsonError:
        return
    if not isinstance(values, dict):
        return
    engine = ENGINES[len(data) % len(ENGINES)]
    odd, plain = _checkpoint(values), _checkpoint(TARGET)
    for target, drafter in ((plain, odd), (odd, plain)):
        pairing = Pairing(read_declared_target(target), read_declared_drafter(drafter), engine)
        judged = judge(pairing)
        failed = [finding for finding in judged.findings if finding.code == "TDM-VALIDATOR-FAILED"]
        assert not failed, failed[0].message


TARGETS = {"header": header, "json": json, "config": config}


def _told(refusal: CheckpointError) -> None:
    assert refusal.findings
    assert all(finding.message and finding.severity is Severity.ERROR for finding in refusal.findings)


def _reading(parse: Any, data: bytes) -> str:
    try:
        return repr(parse(data))
    except strict_json.JsonError:
        return "refused"


def _checkpoint(values: dict[str, Any]) -> Checkpoint:
    folder = Path("/checkpoint")
    tensors: dict[str, TensorInfo] = {}
    return Checkpoint(folder, Config(values, folder / "config.json"), (), MappingProxyType(tensors))
