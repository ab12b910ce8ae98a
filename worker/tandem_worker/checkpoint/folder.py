"""Opens a checkpoint folder: its config, and the headers of all its shards.

Every shard is looked at before anything is raised, so that the user hears of all damaged files at once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tandem_worker.checkpoint import strict_json
from tandem_worker.checkpoint.config import Config, read_config
from tandem_worker.checkpoint.errors import CheckpointError, error, listed, note, printable
from tandem_worker.checkpoint.files import read_bytes, readable
from tandem_worker.checkpoint.header import Shard, TensorInfo, read_shard
from tandem_worker.finding import Finding

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
LARGEST_INDEX_BYTES = 200 * 1024 * 1024
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
REFETCH = "Fetch the checkpoint again from where it was published."


@dataclass(frozen=True)
class Checkpoint:
    """A folder whose files are whole. `tensors` maps the names in the headers to where their bytes lie."""

    path: Path
    config: Config
    shards: tuple[Shard, ...]
    tensors: Mapping[str, TensorInfo]
    index_file: Path | None = None
    findings: tuple[Finding, ...] = field(default=())  # what was odd, but harmless


def open_checkpoint(path: Path) -> Checkpoint:
    """Reads config.json and the shards' headers, no weights.

    Raises CheckpointError (CouldNotCheck) for every kind of damage, naming the file.
    """
    names = _names_in(path)
    config = read_config(_config_file(path, names))
    index_file = path / INDEX if INDEX in names else None
    with _collector_at_rest():
        index = _read_index(index_file) if index_file else {}
        files = sorted(set(index.values())) or [name for name in names if name.endswith(".safetensors")]
        if not files:
            raise CheckpointError(_no_weights(path, names))
        shards = _read_shards(path, names, files)
        tensors = _merge(shards)
        findings = tuple(_compare(index, shards, index_file)) if index_file else ()
    return Checkpoint(path, config, shards, tensors, index_file, findings)


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Headers become hundreds of thousands of small objects and no cycle; the collector would walk them a few times."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _names_in(path: Path) -> list[str]:
    with readable(path):
        if path.is_file():
            finding = error("TDM-NOT-A-FOLDER", f"{path} is a file; a checkpoint is a folder.", file=path)
            raise CheckpointError(finding)
        names = sorted(entry.name for entry in path.iterdir())
    if not names:
        action = "Check that the volume is the right one and that the download has run."
        raise CheckpointError(error("TDM-FOLDER-EMPTY", f"{path} is an empty folder.", file=path, action=action))
    return names


def _config_file(path: Path, names: list[str]) -> Path:
    if CONFIG in names:
        return path / CONFIG
    with readable(path):
        below = [name for name in names if (path / name / CONFIG).is_file()]
    if below:
        message = f"{path} has no {CONFIG}; there is one a level down in {listed(below)}."
        finding = error(
            "TDM-CONFIG-ONE-LEVEL-DOWN", message, file=path / CONFIG, action=f"Use {path / below[0]} as the path."
        )
    else:
        message = f"{path} has no {CONFIG}; it holds {listed(names)}."
        finding = error("TDM-CONFIG-MISSING", message, file=path / CONFIG, action=REFETCH)
    raise CheckpointError(finding)


def _no_weights(path: Path, names: list[str]) -> Finding:
    pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES)]
    if pickles:
        message = f"{path} has its weights only as pickle ({listed(pickles)}); pickles run code and are never opened."
        action = "Publish the checkpoint as safetensors."
        return error("TDM-PICKLE-ONLY", message, file=path / pickles[0], expected="*.safetensors", action=action)
    message = f"{path} has no *.safetensors file; it holds {listed(names)}."
    return error("TDM-WEIGHTS-MISSING", message, file=path, expected="*.safetensors", action=REFETCH)


def _read_index(file: Path) -> dict[str, str]:
    """Tensor name -> shard name."""
    try:
        value = strict_json.parse(read_bytes(file, LARGEST_INDEX_BYTES))
    except strict_json.JsonError as failure:
        raise _index_malformed(file, str(failure)) from None
    entries = value.get("weight_map") if isinstance(value, Mapping) else None
    if not isinstance(entries, Mapping) or not entries:
        raise _index_malformed(file, "it has no weight_map")
    if not _names_files(entries.values()):
        name = next(name for name, shard in entries.items() if not _names_files([shard]))
        raise _index_malformed(file, f"{printable(name, 100)} is not in a file of this folder")
    return dict(zip(entries, map(sys.intern, entries.values()), strict=True))  # type: ignore[arg-type]  # all are str


def _names_files(values: Collection[object]) -> bool:
    """Whether all are names of files in one folder, as far as names go."""
    texts = {value for value in values if isinstance(value, str)} if set(map(type, values)) == {str} else set()
    return bool(texts) and all(Path(text).name == text and text.isprintable() for text in texts)


def _index_malformed(file: Path, reason: str) -> CheckpointError:
    finding = error(
        "TDM-INDEX-MALFORMED", f"{file.name} is not usable: {reason}.", file=file, found=reason, action=REFETCH
    )
    return CheckpointError(finding)


def _read_shards(path: Path, names: list[str], files: Iterable[str]) -> tuple[Shard, ...]:
    shards: list[Shard] = []
    damage: list[Finding] = []
    for name in files:
        if name not in names:
            message = f"{path} lacks {name}, which {INDEX} names."
            damage.append(error("TDM-SHARD-MISSING", message, file=path / name, expected="the file", action=REFETCH))
            continue
        try:
            shards.append(read_shard(path / name))
        except CheckpointError as failure:
            damage.extend(failure.findings)
    if damage:
        raise CheckpointError(*damage)
    return tuple(shards)


def _merge(shards: Sequence[Shard]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        for name in sorted(shard.tensors.keys() & tensors.keys()):
            message = f"{name} is in {tensors[name].file.name} and in {shard.file.name}; which one counts is unclear."
            action = "Remove the file that does not belong to the checkpoint."
            raise CheckpointError(error("TDM-TENSOR-TWICE", message, file=shard.file, where=name, action=action))
        tensors.update(shard.tensors)
    return tensors


def _compare(index: Mapping[str, str], shards: Iterable[Shard], file: Path) -> Iterable[Finding]:
    """Index against headers. Raises CheckpointError where a loader that trusts the index would fail."""
    holds: dict[str, str] = {}
    for shard in shards:
        holds.update(dict.fromkeys(shard.tensors, shard.file.name))
    if holds == index:
        return
    astray = [name for name, shard in index.items() if holds.get(name) != shard]
    if astray:
        message = f"{file.name} names tensors that are not in the files it says: {listed(astray)}."
        raise CheckpointError(
            error(
                "TDM-INDEX-DISAGREES",
                message,
                file=file,
                where=astray[0],
                found=f"{len(astray)} astray",
                action=REFETCH,
            )
        )
    unlisted = sorted(holds.keys() - index.keys())
    if unlisted:
        yield note(
            "TDM-INDEX-INCOMPLETE", f"{file.name} does not list {listed(unlisted)}.", file=file, where=unlisted[0]
        )
