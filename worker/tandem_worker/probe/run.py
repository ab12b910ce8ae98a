"""The probe: one pass of the target over calibration texts, then the drafter under every wiring it may be meant for.

Arithmetic is float32 on the CPU, in the target's dtype on a GPU. The target streams through memory layer by layer
(`stream`), so its size does not matter; its own continuations, where they are asked for, need it in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tandem_worker.checkpoint import CheckpointError, Target, TensorInfo, read_target
from tandem_worker.checkpoint.errors import error
from tandem_worker.checks.pairing import Pairing
from tandem_worker.contract import Resolution
from tandem_worker.cores import allowed_cores
from tandem_worker.finding import Finding, Verdict
from tandem_worker.models.load import load_target
from tandem_worker.probe.build import Parts, load_parts
from tandem_worker.probe.captured import Captured, captured
from tandem_worker.probe.chain import chains
from tandem_worker.probe.described import describe_drafter
from tandem_worker.probe.diagnosis import Cause, diagnose, explanation
from tandem_worker.probe.drafting import FirstSteps
from tandem_worker.probe.engine_fault import differs, stated_wiring, suspected
from tandem_worker.probe.evidence import predicting
from tandem_worker.probe.generate import continue_greedily
from tandem_worker.probe.hypotheses import Choices
from tandem_worker.probe.prompts import read_prompts, tokenize
from tandem_worker.probe.race import Measure
from tandem_worker.probe.resolved import choices_of, engine_wiring, tensors_of
from tandem_worker.probe.score import knowing_nothing, score
from tandem_worker.probe.search import Row, Table, search, stepped_back
from tandem_worker.probe.stream import Progress, arithmetic, stream
from tandem_worker.probe.streamed import Streamed
from tandem_worker.probe.wiring import Wiring

LONGEST_PROMPT_TOKENS = 96  # of texts that the target goes on with
LOOK_POSITIONS = (32, 128, 512)
LEAST_POSITIONS = 30
SMALL_TARGET_BYTES = 100_000_000


@dataclass(frozen=True)
class Options:
    draft_length: int
    min_accept_length: float
    prompts: Path | None = None
    new_tokens: int = 0  # of the target's own greedy continuation, which is judged then; 0: the texts themselves are
    device: torch.device | None = None  # None: a GPU where there is one
    stated: Resolution | None = None  # what a worker of this engine says that it did with the pair
    other: Pairing | None = None  # another drafter for the same target and engine
    on_progress: Callable[[Progress], None] = lambda progress: None
    resume: Path | None = None  # folder that keeps what the pass over the target has reached


@dataclass(frozen=True)
class Probed:
    table: Table  # the rows that matter with chains
    causes: tuple[Cause, ...]
    nothing: float  # overlap of a drafter that only knows how frequent tokens are
    texts: int
    positions: int  # judged
    options: Options


def probe(pairing: Pairing, options: Options) -> Probed:
    """Raises CheckpointError: CouldNotCheck for what can not be run, DoesNotFit for weights that are no numbers."""
    target = read_target(pairing.target.checkpoint)
    device = options.device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    small = sum(shard.size_bytes for shard in pairing.target.checkpoint.shards) < SMALL_TARGET_BYTES
    # Threads that wait for each other's few microseconds of work cost ten times the work on a busy machine.
    torch.set_num_threads(1 if small else allowed_cores())
    wiring = engine_wiring(pairing)
    offered = choices_of(pairing, wiring)
    drafter, tensors = describe_drafter(pairing, target, offered.states), tensors_of(pairing)
    rows, starts = _texts(pairing, target, options, device)
    streamed = stream(
        pairing.target.checkpoint.path,
        [torch.tensor(row) for row in rows],
        range(target.layers + 1),
        device,
        options.on_progress,
        options.resume,
    )
    seen = captured(streamed, starts)
    if seen.positions < LEAST_POSITIONS:
        raise CheckpointError(_too_little(pairing, seen.positions))
    parts = load_parts(drafter, tensors, streamed)
    return _with_doubts(pairing, measure(pairing, options, seen, parts, wiring, offered), seen, streamed, parts)


def _with_doubts(pairing: Pairing, probed: Probed, seen: Captured, streamed: Streamed, parts: Parts) -> Probed:
    """Puts the engine first among the causes where its own statement, or another drafter, speaks against it."""
    options, table, doubts = probed.options, probed.table, []
    if options.stated is not None and all(0 <= i <= table.layers for i in options.stated.capture_indexes):
        wiring = stated_wiring(table.engine.wiring, options.stated, table.layers)
        stated = Row(wiring, score(seen, parts, [wiring])[wiring])
        doubts.append(differs(pairing, table.engine, stated, options.stated))
    best = probed.causes[0].after if probed.causes else None
    if options.other is not None and best is not None:
        described = describe_drafter(options.other, streamed.target, len(parts.drafter.capture_indexes))
        others = load_parts(described, tensors_of(options.other), streamed)
        wiring = engine_wiring(options.other)
        second = measure(options.other, options, seen, others, wiring, choices_of(options.other, wiring))
        after = second.causes[0].after if second.causes else None
        if after is not None:
            mine, theirs = (table.engine.wiring, best.wiring), (wiring, after.wiring)
            doubts.append(suspected(pairing, mine, theirs, probed.causes[0]))
    return replace(probed, causes=(*(doubt for doubt in doubts if doubt), *probed.causes))


def measure(
    pairing: Pairing, options: Options, seen: Captured, parts: Parts, wiring: Wiring, offered: Choices
) -> Probed:
    """`wiring` is what the engine will make of the pair, or made of it by its own account."""
    begun: FirstSteps = {}
    table, nothing = searched(seen, parts, wiring, offered, begun)
    if not table.engine.score.finite:
        raise CheckpointError(_not_finite(pairing, tensors_of(pairing), parts), verdict=Verdict.DOES_NOT_FIT)
    best = explanation(table, nothing) or table.engine
    table = stepped_back(table, best.wiring, lambda wirings: score(seen, parts, wirings))
    fed_back = replace(best.wiring, norm_output=not best.wiring.norm_output)
    drafts = chains(seen, parts, [table.engine.wiring, best.wiring, fed_back], options.draft_length, begun)
    table = table.with_chains(drafts).feeding_back(fed_back, drafts[fed_back])
    causes = diagnose(table, pairing, options.min_accept_length, nothing)
    return Probed(table, causes, nothing, len(seen.texts), seen.positions, options)


def searched(
    seen: Captured, parts: Parts, wiring: Wiring, offered: Choices, begun: FirstSteps | None = None
) -> tuple[Table, float]:
    """With the overlap of a drafter that only knows frequencies. `begun` takes in the first steps on the whole text."""

    def scoring(part: Captured, kept: FirstSteps | None = None) -> Measure:
        return lambda wirings: score(part, parts, wirings, kept)

    shortened = [seen.shortened(positions) for positions in LOOK_POSITIONS]
    nothing = knowing_nothing(shortened[-1])
    measures = [scoring(part) for part in shortened]
    return search(wiring, offered, measures, scoring(seen, begun), predicting(nothing)), nothing


def _texts(
    pairing: Pairing, target: Target, options: Options, device: torch.device
) -> tuple[list[list[int]], list[int]]:
    """Rows of token ids, and the first position of each that is judged."""
    longest = target.max_position_embeddings
    if options.new_tokens:
        longest = max(1, min(LONGEST_PROMPT_TOKENS, longest - options.new_tokens))
    rows = tokenize(read_prompts(options.prompts), pairing.target.checkpoint, target.vocab_size, longest)
    if not options.new_tokens:
        rows = [row for row in rows if len(row) > 1]  # one token alone has nothing to be drafted after it
    if not rows:
        raise CheckpointError(_too_little(pairing, 0))
    if not options.new_tokens:
        return rows, [0] * len(rows)
    dtype = torch.float32 if device.type == "cpu" else arithmetic(target, pairing.target.checkpoint)
    whole = load_target(pairing.target.checkpoint, target, dtype, device)
    with torch.inference_mode():
        return continue_greedily(whole, rows, options.new_tokens), [len(row) - 1 for row in rows]


def _not_finite(pairing: Pairing, tensors: Mapping[str, TensorInfo], parts: Parts) -> Finding:
    for name, value in parts.tensors.items():
        bad = int((~torch.isfinite(value)).sum()) if value.is_floating_point() else 0
        if bad:
            return error(
                "TDM-NAN-LOGITS",
                f"The drafter's logits are not finite: {tensors[name].name} holds {bad} values that are NaN or "
                "infinite.",
                file=tensors[name].file,
                where=tensors[name].name,
                found=f"{bad} of {value.numel()} values",
                action="Restore the file, or use an earlier checkpoint.",
            )
    return error(
        "TDM-NAN-LOGITS",
        "The drafter's logits are not finite although all of its weights are: it overflows.",
        file=pairing.drafter.checkpoint.path,
        action="Check the scale of the weights and the dtype they were trained in.",
    )


def _too_little(pairing: Pairing, positions: int) -> Finding:
    return error(
        "TDM-TOO-LITTLE-TEXT",
        f"The calibration texts hold {positions} places to draft at; at least {LEAST_POSITIONS} are needed to judge.",
        file=pairing.target.checkpoint.path,
        found=positions,
        expected=f"at least {LEAST_POSITIONS}",
        action="Give --prompts with more text.",
    )
