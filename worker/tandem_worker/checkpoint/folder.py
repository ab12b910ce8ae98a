"""Opens a checkpoint folder: its config, and the headers of all its shards.

Every shard is looked at before anything is raised, so that the user hears of all damaged files at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tandem_worker.checkpoint import strict_json
from tandem_worker.checkpoint.config import Config, read_config
from tandem_worker.checkpoint.errors import CheckpointError, error, listed, note, printable
from tandem_worker.checkpoint.files import read_bytes, readable
from tandem_worker.checkpoint.header import Shard, TensorInfo, read_shard
from tandem_worker.contract import Finding

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
    index = _read_index(index_file) if index_file else {}
    files = sorted(set(index.values())) or [name for name in names if name.endswith(".safetensors")]
    if not files:
        raise CheckpointError(_no_weights(path, names))
    shards = _read_shards(path, names, files)
    tensors = _merge(shards)
    findings = tuple(_compare(index, tensors, index_file)) if index_file else ()
    return Checkpoint(path, config, shards, tensors, index_file, findings)


def _names_in(path: Path) -> list[str]:
    with readable(path):
        if path.is_file():
            finding = error("NotAFolder", f"{path} is a file; a checkpoint is a folder.", file=path)
            raise CheckpointError(finding)
        names = sorted(entry.name for entry in path.iterdir())
    if not names:
        action = "Check that the volume is the right one and that the download has run."
        raise CheckpointError(error("FolderEmpty", f"{path} is an empty folder.", file=path, action=action))
    return names


def _config_file(path: Path, names: list[str]) -> Path:
    if CONFIG in names:
        return path / CONFIG
    with readable(path):
        below = [name for name in names if (path / name / CONFIG).is_file()]
    if below:
        message = f"{path} has no {CONFIG}; there is one a level down in {listed(below)}."
        finding = error("ConfigOneLevelDown", message, file=path / CONFIG, action=f"Use {path / below[0]} as the path.")
    else:
        message = f"{path} has no {CONFIG}; it holds {listed(names)}."
        finding = error("ConfigMissing", message, file=path / CONFIG, action=REFETCH)
    raise CheckpointError(finding)


def _no_weights(path: Path, names: list[str]) -> Finding:
    pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES)]
    if pickles:
        message = f"{path} has its weights only as pickle ({listed(pickles)}); pickles run code and are never opened."
        action = "Publish the checkpoint as safetensors."
        return error("PickleOnly", message, file=path / pickles[0], expected="*.safetensors", action=action)
    message = f"{path} has no *.safetensors file; it holds {listed(names)}."
    return error("WeightsMissing", message, file=path, expected="*.safetensors", action=REFETCH)


def _read_index(file: Path) -> dict[str, str]:
    """Tensor name -> shard name."""
    try:
        value = strict_json.parse(read_bytes(file, LARGEST_INDEX_BYTES))
    except strict_json.JsonError as failure:
        raise _index_malformed(file, str(failure)) from None
    entries = value.get("weight_map") if isinstance(value, Mapping) else None
    if not isinstance(entries, Mapping) or not entries:
        raise _index_malformed(file, "it has no weight_map")
    index = {name: shard for name, shard in entries.items() if isinstance(shard, str)}
    astray = [shard for shard in set(index.values()) if Path(shard).name != shard or not shard.isprintable()]
    if astray or len(index) < len(entries):
        name = next(name for name in entries if index.get(name) in (None, *astray))
        raise _index_malformed(file, f"{printable(name, 100)} is not in a file of this folder")
    return index


def _index_malformed(file: Path, reason: str) -> CheckpointError:
    finding = error("IndexMalformed", f"{file.name} is not usable: {reason}.", file=file, found=reason, action=REFETCH)
    return CheckpointError(finding)


def _read_shards(path: Path, names: list[str], files: Iterable[str]) -> tuple[Shard, ...]:
    shards: list[Shard] = []
    damage: list[Finding] = []
    for name in files:
        if name not in names:
            message = f"{path} lacks {name}, which {INDEX} names."
            damage.append(error("ShardMissing", message, file=path / name, expected="the file", action=REFETCH))
            continue
        try:
            shards.append(read_shard(path / name))
        except CheckpointError as failure:
            damage.extend(failure.findings)
    if damage:
        raise CheckpointError(*damage)
    return tuple(shards)


def _merge(shards: Iterable[Shard]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        for tensor in shard.tensors:
            other = tensors.setdefault(tensor.name, tensor)
            if other is not tensor:
                message = (
                    f"{tensor.name} is in {other.file.name} and in {shard.file.name}; which one counts is unclear."
                )
                action = "Remove the file that does not belong to the checkpoint."
                raise CheckpointError(
                    error("TensorTwice", message, file=shard.file, where=tensor.name, action=action),
                )
    return tensors


def _compare(index: Mapping[str, str], tensors: Mapping[str, TensorInfo], file: Path) -> Iterable[Finding]:
    """Index against headers. Raises CheckpointError where a loader that trusts the index would fail."""
    astray = [name for name, shard in index.items() if name not in tensors or tensors[name].file.name != shard]
    if astray:
        message = f"{file.name} names tensors that are not in the files it says: {listed(astray)}."
        raise CheckpointError(
            error("IndexDisagrees", message, file=file, where=astray[0], found=f"{len(astray)} astray", action=REFETCH)
        )
    unlisted = sorted(tensors.keys() - index.keys())
    if unlisted:
        yield note("IndexIncomplete", f"{file.name} does not list {listed(unlisted)}.", file=file, where=unlisted[0])
