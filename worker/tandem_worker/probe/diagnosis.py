"""From what was measured to causes: a pure function.

A wiring explains low acceptance when it is surely better than the engine's on the same texts, by more than a trifle,
and when it predicts at all: a drafter that says the same frequent tokens everywhere overlaps with any target a little.
Of wirings that measure alike, the one that changes least is believed, and of those the likeliest. Each thing that it
changes is a cause of its own, ranked by what is lost when that one thing is left as the engine has it.

Otherwise no wiring explains it, and the sentence says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem_worker.checks.pairing import Pairing
from tandem_worker.probe.causes import code_of, says
from tandem_worker.probe.evidence import LEAST_GAIN, gain, predicting, surely, worth_telling
from tandem_worker.probe.remedy import remedy
from tandem_worker.probe.search import Row, Table
from tandem_worker.probe.wiring import Aspect, differences, taken_back

WRONG = 1e-5
"""The chance that one wiring, no better than the engine's, passes for better. Some hundred are tried."""
ALIKE = 0.01  # the chance of error at which two wirings are told apart
DOES_NOT_PREDICT = "TDM-DRAFTER-DOES-NOT-PREDICT"


@dataclass(frozen=True)
class Cause:
    code: str
    sentence: str
    before: Row  # as the engine has it, everything else mended
    after: Row | None  # mended; None: nothing mends it
    action: str = ""  # the one change


def diagnose(table: Table, pairing: Pairing, threshold: float, nothing: float) -> tuple[Cause, ...]:
    """Ranked. `threshold` is of accept length, `nothing` the overlap of a drafter that only knows frequencies."""
    best = explanation(table, nothing)
    fed_back = _fed_back(table, best or table.engine, pairing)
    if best is not None:
        return (*(_cause(table, best, aspect, pairing) for aspect in _ranked(table, best)), *fed_back)
    if fed_back:
        return fed_back
    lost = _nothing_provides(table, pairing)
    if lost is not None:
        return (lost,)
    if table.engine.chain is not None and table.engine.chain.accept_length < threshold:
        return (_unexplained(table, pairing, threshold),)
    return ()


def explanation(table: Table, nothing: float) -> Row | None:
    """The wiring that the drafter was probably made for, when it is not the engine's."""
    better = [row for row in table.rows if _explains(row, table.engine, nothing)]
    if not better:
        return None
    top = better[0]
    alike = [row for row in better if not surely(top.better_than(row), ALIKE)]
    order = {wiring: place for place, wiring in enumerate(table.looked)}
    return min(
        alike, key=lambda row: (len(differences(table.engine.wiring, row.wiring)), order.get(row.wiring, len(order)))
    )


def _explains(row: Row, engine: Row, nothing: float) -> bool:
    difference, overlap = row.better_than(engine), row.overlap.value
    knows = overlap >= predicting(nothing)
    return knows and difference.value >= worth_telling(overlap) and surely(difference, WRONG)


def _ranked(table: Table, best: Row) -> list[Aspect]:
    """The mended things, the one whose loss is worst first."""
    engine = table.engine.wiring
    return sorted(differences(engine, best.wiring), key=lambda aspect: _without(table, best, aspect).overlap.value)


def _without(table: Table, best: Row, aspect: Aspect) -> Row:
    return table.row(taken_back(best.wiring, table.engine.wiring, aspect)) or table.engine


def _cause(table: Table, best: Row, aspect: Aspect, pairing: Pairing) -> Cause:
    before, engine = _without(table, best, aspect), table.engine.wiring
    action = remedy(pairing, aspect, engine, best.wiring)
    figures = f"position-0 acceptance {before.position0.value:.2f} against {best.position0.value:.2f}"
    others = len(differences(engine, best.wiring)) - 1
    figures += f", {'all else' if others > 1 else 'the other'} mended" if others else ""
    sentence = f"{pairing.says} {says(aspect, engine, best.wiring)}: {figures}; {action}."
    return Cause(code_of(aspect, engine, best.wiring), sentence, before, best, action)


def _fed_back(table: Table, best: Row, pairing: Pairing) -> tuple[Cause, ...]:
    """The state that a draft step hands to the next one, before or after the output norm, shows at position 1 only."""
    twin = table.twin
    if twin is None or twin.chain is None or best.chain is None or len(best.chain.tried) < 2:
        return ()
    difference = gain(twin.chain.accepted[1], best.chain.accepted[1], best.chain.tried[1])
    if difference.value < LEAST_GAIN or not surely(difference, WRONG):
        return ()
    aspect = Aspect.NORM_OUTPUT
    action = remedy(pairing, aspect, best.wiring, twin.wiring)
    figures = f"accept length {best.chain.accept_length:.2f} against {twin.chain.accept_length:.2f}"
    sentence = f"{pairing.says} {says(aspect, best.wiring, twin.wiring)}: {figures}; {action}."
    return (Cause(code_of(aspect, best.wiring, twin.wiring), sentence, best, twin, action),)


def _nothing_provides(table: Table, pairing: Pairing) -> Cause | None:
    """Parameters at random for which the files hold nothing: no wiring can mend that, and nothing more can be told."""
    lost = sorted(table.engine.wiring.random)
    lost += [name for name in ("embed_tokens.weight", "lm_head.weight") if _at_random(table, name)]
    if not lost:
        return None
    shown = ", ".join(lost[:4]) + (f" and {len(lost) - 4} more" if len(lost) > 4 else "")
    action = "restore the tensors from the training run, or use another copy of the drafter"
    sentence = (
        f"{pairing.says} leaves {shown} at random, because nothing in the drafter's files provides them: position-0 "
        f"acceptance {table.engine.position0.value:.2f}; {action}."
    )
    return Cause("TDM-PARAMETERS-MISSING", sentence, table.engine, None, action)


def _at_random(table: Table, name: str) -> bool:
    wiring = table.engine.wiring
    return (wiring.embedding if name.startswith("embed") else wiring.head).name == "RANDOM"


def _unexplained(table: Table, pairing: Pairing, threshold: float) -> Cause:
    engine, chain = table.engine, table.engine.chain
    assert chain is not None, "asked of a measured pair only"
    tried, best = len(table.looked) - 1, table.closest
    evidence = (
        f"the best of {tried} others tried reaches {best.position0.value:.2f}" if best else "none other was tried"
    )
    action = "use a drafter that was trained for this target and tokenizer, or train this one further"
    sentence = (
        f"No wiring explains it: the drafter does not predict this target (wrong target, undertrained, other "
        f"tokenizer). Accept length {chain.accept_length:.2f} is below {threshold:.2f}, position-0 acceptance "
        f"{engine.position0.value:.2f} as {pairing.engine.title} will run it; {evidence}."
    )
    return Cause(DOES_NOT_PREDICT, sentence, engine, None, action)
