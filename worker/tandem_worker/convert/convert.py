"""From a drafter to a corrected copy beside it: fixes, streaming write, and the checks that the copy must pass.

The copy is written under another name in the same folder, judged there, and takes its own name only when it fits: an
interruption or a refusal leaves nothing behind, and nobody sees half a checkpoint.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tandem_worker.checkpoint import CheckpointError, fingerprint, strict_json
from tandem_worker.checkpoint.folder import CONFIG, INDEX, PICKLE_SUFFIXES, leads_out_of
from tandem_worker.checks.engine_resolution import resolve_for
from tandem_worker.checks.judge import Judgement, errors_of, judge, open_pairing
from tandem_worker.checks.layer_rules import Indexes
from tandem_worker.checks.pairing import Pairing
from tandem_worker.convert.draft import Change, Draft, Entry, NotMechanical
from tandem_worker.convert.fixes import FIXES, layer_ids
from tandem_worker.convert.write import write_tensors
from tandem_worker.engines import Engine
from tandem_worker.finding import EXIT_CODES, ExitCode

PROVENANCE = "tandem-convert.json"


class Refused(Exception):
    """No copy was left behind. Says why in sentences."""


@dataclass(frozen=True)
class Converted:
    out: Path
    changes: tuple[Change, ...]
    judgement: Judgement  # of the copy, for the engine


def convert(
    drafter: Path,
    out: Path,
    target: Path,
    engine: Engine,
    trained_on: Indexes | None = None,
    origin: Engine | None = None,
    force: bool = False,
) -> Converted:
    """`trained_on`: capture indexes of the training run; `origin`: an engine whose reading of the ids is right.

    Raises Refused where a correction would be a guess or does not suffice, CheckpointError for damaged files, OSError
    when the copy can not be written.
    """
    _check_place(drafter, out, target, force)
    pairing = open_pairing(target, drafter, engine, trained_on)
    draft = _draft(pairing)
    try:
        meant = trained_on or (_captured_by(pairing, origin) if origin else None)
        for fix in FIXES:
            fix(draft)
        layer_ids(draft, meant)
    except NotMechanical as reason:
        raise Refused(f"That would be a guess: {reason}.") from None
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        _write(draft, scratch)
        judgement = _judge_copy(scratch, pairing, meant)
        scratch.chmod(0o755)  # a temporary folder is private at first
        _rename(scratch, out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Converted(out, tuple(draft.changes), judgement)


def _check_place(drafter: Path, out: Path, target: Path, force: bool) -> None:
    place = out.resolve()
    for name, source in (("drafter", drafter), ("target", target)):
        if place == source.resolve() or source.resolve() in place.parents or place in source.resolve().parents:
            raise Refused(f"{out} and the {name} {source} overlap; give a folder beside it.")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise Refused(f"{out} is not a folder; it is never replaced.")
    if out.exists() and not force:
        raise Refused(f"{out} exists; --force replaces it.")
    if out.exists() and any(out.iterdir()) and not (out / CONFIG).is_file():
        raise Refused(f"{out} holds no checkpoint; --force replaces nothing else.")


def _draft(pairing: Pairing) -> Draft:
    checkpoint = pairing.drafter.checkpoint
    config = strict_json.parse(checkpoint.config.file.read_bytes())
    copied: dict[str, Any] = json.loads(json.dumps(config))
    return Draft(pairing, copied, {name: Entry(tensor) for name, tensor in checkpoint.tensors.items()})


def _captured_by(pairing: Pairing, origin: Engine) -> Indexes:
    captured = resolve_for(pairing.target, pairing.drafter, origin).captured
    if captured is None:
        raise NotMechanical(f"what {origin.title} captures for this pair is not known")
    return captured


def _write(draft: Draft, folder: Path) -> None:
    source = draft.pairing.drafter.checkpoint
    (folder / CONFIG).write_text(json.dumps(draft.config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    write_tensors(folder / "model.safetensors", draft.tensors)
    for file in sorted(source.path.iterdir()):
        weights = file.name.endswith((".safetensors", *PICKLE_SUFFIXES))
        if file.is_file() and not weights and file.name not in (CONFIG, INDEX, PROVENANCE):
            if leads_out_of(source.path, file):  # a checkpoint from elsewhere must not publish what it points at
                raise Refused(f"{file} is a link out of the drafter's folder, to {file.resolve()}; copy or remove it.")
            shutil.copyfile(file, folder / file.name)
    (folder / PROVENANCE).write_text(json.dumps(_provenance(draft), indent=2, ensure_ascii=False) + "\n")


def _provenance(draft: Draft) -> dict[str, Any]:
    """What was done to what: no time and no place, so that the same conversion gives the same file."""
    try:
        ours = version("tandem")
    except PackageNotFoundError:
        ours = "0"
    pairing = draft.pairing
    engine = f"{pairing.engine.name}@{pairing.engine.version}"
    return {
        "made_by": f"tandem-worker convert {ours}",
        "engine": engine,
        "drafter": fingerprint(pairing.drafter.checkpoint),
        "target": fingerprint(pairing.target.checkpoint),
        "changes": [change._asdict() for change in draft.changes],
    }


def _judge_copy(folder: Path, source: Pairing, meant: Indexes | None) -> Judgement:
    """Raises Refused unless the copy fits."""
    target = source.target.checkpoint.path
    try:
        judgement = judge(open_pairing(target, folder, source.engine, meant))
    except CheckpointError as failure:
        raise Refused(f"The copy could not be checked: {failure}") from None
    if EXIT_CODES[judgement.verdict] is not ExitCode.FITS:
        left = _sentences(finding.message for finding in errors_of(judgement.findings))
        raise Refused(f"What is left can not be corrected mechanically: {left or judgement.summary}")
    return judgement


def _sentences(messages: Iterable[str]) -> str:
    return " ".join(messages)


def _rename(scratch: Path, out: Path) -> None:
    """Takes the place of an older copy in two renames: at no moment is `out` half of one and half of the other."""
    old = None
    if out.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
        out.rename(old / out.name)
    scratch.rename(out)
    if old is not None:
        shutil.rmtree(old)
