"""Opens a checkpoint folder: its config, and the headers of all its shards.

Every shard is looked at before anything is raised, so that the user hears of all damaged files at once.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath

from tandem_worker.checkpoint import strict_json
from tandem_worker.checkpoint.config import Config, not_json, read_config
from tandem_worker.checkpoint.errors import CheckpointError, error, listed, note, printable, warning
from tandem_worker.checkpoint.files import read_bytes, readable
from tandem_worker.checkpoint.header import Shard, TensorInfo, read_shard
from tandem_worker.finding import Finding

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
LARGEST_INDEX_BYTES = 200 * 1024 * 1024
THREADS = 4
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


def open_checkpoint(path: Path, weights_expected: bool = True) -> Checkpoint:
    """Reads config.json and the shards' headers, no weights. Without `weights_expected` a folder that never had any (a
    config that somebody fetched, to ask about a pair) is a checkpoint without tensors.

    Raises CheckpointError (CouldNotCheck) for every kind of damage, naming the file.
    """
    names = _names_in(path)
    config = read_config(_config_file(path, names))
    if not weights_expected and not any(name.endswith((".safetensors", INDEX, *PICKLE_SUFFIXES)) for name in names):
        message = f"{path} holds a config and no weights; only what the config says was compared."
        return Checkpoint(path, config, (), {}, None, (note("TDM-CONFIG-ALONE", message, file=path),))
    index_file = path / INDEX if INDEX in names else None
    with _collector_at_rest():
        index = _read_index(index_file) if index_file else {}
        files = sorted(set(index.values())) or _weight_files(names)
        if not files:
            raise CheckpointError(_no_weights(path, names))
        shards = _read_shards(path, files)
        agreed = index_file is not None and _as_listed(index, shards, index_file)
        if not agreed:  # an index that agrees names each tensor once
            _check_distinct(shards)
        findings = [*_compare(index, shards, index_file)] if index_file and not agreed else []
    return Checkpoint(path, config, shards, Tensors(shards), index_file, (*findings, *_links(path, shards)))


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


def _weight_files(names: list[str]) -> list[str]:
    """Without an index. Mistral's releases hold the weights twice, once consolidated under other tensor names."""
    files = [name for name in names if name.endswith(".safetensors")]
    return [name for name in files if not name.startswith("consolidated")] or files


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
    with readable(path):
        below = [name for name in names if any((path / name).glob("*.safetensors"))]
    if below:
        message = f"{path} has no *.safetensors file; there are some a level down in {listed(below)}."
        action = f"Move them beside config.json, or use {path / below[0]} as the path if it has one of its own."
        return error("TDM-WEIGHTS-ONE-LEVEL-DOWN", message, file=path, expected="*.safetensors", action=action)
    if pickles:
        message = f"{path} has its weights only as pickle ({listed(pickles)}); pickles run code and are never opened."
        action = "Publish the checkpoint as safetensors."
        return error("TDM-PICKLE-ONLY", message, file=path / pickles[0], expected="*.safetensors", action=action)
    message = f"{path} has no *.safetensors file; it holds {listed(names)}."
    return error("TDM-WEIGHTS-MISSING", message, file=path, expected="*.safetensors", action=REFETCH)


def _read_index(file: Path) -> Mapping[str, str]:
    """Tensor name -> shard name."""
    try:
        data = read_bytes(file, LARGEST_INDEX_BYTES)
        value = strict_json.parse(data)
    except strict_json.JsonError as failure:
        raise _index_malformed(file, not_json(data) or str(failure)) from None
    entries = value.get("weight_map") if isinstance(value, Mapping) else None
    if not isinstance(entries, Mapping) or not entries:
        raise _index_malformed(file, "it has no weight_map")
    if not _names_files(entries.values()):
        name = next(name for name, shard in entries.items() if not _names_files([shard]))
        raise _index_malformed(file, f"{printable(name, 100)} is not in a file of this folder")
    return entries  # type: ignore[return-value]  # all values are str


def _names_files(values: Collection[object]) -> bool:
    """Whether all are names of files of the folder, as far as names go."""
    return set(map(type, values)) == {str} and all(map(_inside, set(values)))  # type: ignore[arg-type]  # all are str


def _inside(shard: str) -> bool:
    """A file of the folder, or of a folder below it."""
    path = PurePosixPath(shard)
    return bool(path.name) and not path.is_absolute() and ".." not in path.parts and shard.isprintable()


def _index_malformed(file: Path, reason: str) -> CheckpointError:
    finding = error(
        "TDM-INDEX-MALFORMED", f"{file.name} is not usable: {reason}.", file=file, found=reason, action=REFETCH
    )
    return CheckpointError(finding)


def _read_shards(path: Path, files: Sequence[str]) -> tuple[Shard, ...]:
    """Side by side: a volume that is far away answers several questions in the time of one."""
    if len(files) == 1:
        read: Iterable[Shard | CheckpointError] = [_read_or_failure(path, files[0])]
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(THREADS) as pool:
            read = list(pool.map(lambda name: _read_or_failure(path, name), files))
    shards: list[Shard] = []
    damage: list[Finding] = []
    for result in read:
        if isinstance(result, CheckpointError):
            damage.extend(result.findings)
        else:
            shards.append(result)
    if damage:
        raise CheckpointError(*damage)
    return tuple(shards)


def _read_or_failure(path: Path, name: str) -> Shard | CheckpointError:
    file = path / name
    try:
        with readable(file):
            if not file.exists():
                return CheckpointError(_absent(path, file))
        return read_shard(file)
    except CheckpointError as failure:
        return failure


def _absent(path: Path, file: Path) -> Finding:
    if file.is_symlink():
        points = os.readlink(file)
        message = f"{file.name} is a symbolic link to {points}, which is not there."
        action = "Mount the folder that the link leads to, or copy the files instead of linking them."
        return error("TDM-LINK-BROKEN", message, file=file, found=points, expected="the file", action=action)
    message = f"{path} lacks {file.name}, which {INDEX} names."
    return error("TDM-SHARD-MISSING", message, file=file, expected="the file", action=REFETCH)


def leads_out_of(folder: Path, file: Path) -> bool:
    """A link to somewhere else than the folder, or than the blobs that a hub cache keeps beside it."""
    if not file.is_symlink():
        return False
    home, real = folder.resolve(), file.resolve()
    cached = real.parent.name == "blobs" and home.is_relative_to(real.parent.parent)
    return not real.is_relative_to(home) and not cached


def _links(path: Path, shards: Iterable[Shard]) -> Iterable[Finding]:
    """Links that leave the folder break when it is mounted alone. A hub cache links its snapshots to its own blobs."""
    for shard in shards:
        if leads_out_of(path, shard.file):
            yield warning(
                "TDM-LINK-OUTSIDE",
                f"{shard.file.name} is a symbolic link out of the checkpoint's folder, to {shard.file.resolve()}.",
                file=shard.file,
                found=shard.file.resolve(),
                expected="a file of the folder",
                action="Copy the file: a pod that mounts the folder alone does not have it.",
            )
            return


class Tensors(Mapping[str, TensorInfo]):
    """Of all shards. A name is looked for in one shard after the other: there are few of either."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._parts = [shard.tensors for shard in shards]

    def __getitem__(self, name: str) -> TensorInfo:
        for part in self._parts:
            if name in part:
                return part[name]
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(name in part for part in self._parts)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))


def _check_distinct(shards: Sequence[Shard]) -> None:
    """Raises CheckpointError for a tensor that two shards hold."""
    seen: dict[str, Shard] = {}
    for shard in shards:
        for name in sorted(seen.keys() & shard.tensors.keys()):
            message = f"{name} is in {seen[name].file.name} and in {shard.file.name}; which one counts is unclear."
            action = "Remove the file that does not belong to the checkpoint."
            raise CheckpointError(error("TDM-TENSOR-TWICE", message, file=shard.file, where=name, action=action))
        seen.update(dict.fromkeys(shard.tensors, shard))


def _as_listed(index: Mapping[str, str], shards: Sequence[Shard], file: Path) -> bool:
    """Whether the headers hold exactly what the index says."""
    if len(index) != sum(len(shard.tensors) for shard in shards):
        return False
    return all(set(map(index.get, shard.tensors)) == {_listed_as(shard, file)} for shard in shards)


def _listed_as(shard: Shard, index_file: Path) -> str:
    return shard.file.relative_to(index_file.parent).as_posix()


def _compare(index: Mapping[str, str], shards: Iterable[Shard], file: Path) -> Iterable[Finding]:
    """Index against headers. Raises CheckpointError where a loader that trusts the index would fail."""
    holds = {name: _listed_as(shard, file) for shard in shards for name in shard.tensors}
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
