"""When the engine is at fault and not the drafter: it does other than its table says, or fails two drafters alike.

A worker states at start what it did: indexes hooked, width entering fc, fc applied or not. Where that differs from the
resolution, the pair is measured as stated, too, and the cause shows the shapes at that boundary. And drafters of
different files that need the very same change were not all trained wrongly: the engine captures or reads otherwise than
everybody thinks.
"""

from __future__ import annotations

from dataclasses import replace

from tandem_worker.checks.pairing import Pairing
from tandem_worker.contract import Resolution
from tandem_worker.probe.diagnosis import Cause
from tandem_worker.probe.evidence import surely
from tandem_worker.probe.resolved import tensors_of
from tandem_worker.probe.search import Row
from tandem_worker.probe.wiring import Aspect, View, Wiring, differences

ALIKE = 0.01
DIFFERS, SUSPECTED = "TDM-ENGINE-DIFFERS", "TDM-ENGINE-SUSPECTED"


def stated_wiring(resolved: Wiring, stated: Resolution, layers: int) -> Wiring:
    """What the worker says that it does, as far as it says it."""
    wiring = replace(
        resolved,
        capture=stated.capture_indexes,
        norm_before_residual=stated.norm_before_residual,
        random=resolved.random | frozenset(name for name in stated.missing if name.startswith(("fc.", "midlayer."))),
    )
    if stated.fc_applied:
        return replace(wiring, fused=True, view=View.STREAM)
    return replace(wiring, fused=False, capture=(layers,), view=View.FINAL_NORM)


def differs(pairing: Pairing, resolved: Row, stated: Row, said: Resolution) -> Cause | None:
    """None where the statement is the resolution, or costs nothing that could be measured."""
    if stated.wiring == resolved.wiring:
        return None
    gain = resolved.better_than(stated)
    if not surely(gain, ALIKE):
        return None
    resolution, fc = pairing.resolution, tensors_of(pairing).get("fc.weight")
    captured = list(resolution.captured or ())
    states, width = resolution.states or 0, resolution.target_width or 0
    applied = "fc applied" if said.fc_applied else "fc not applied"
    shape = f"fc.weight is {list(fc.shape)}" if fc is not None else "there is no fc.weight"
    action = f"look at {pairing.engine.title}, not at the drafter"
    sentence = (
        f"{pairing.says} states that it captures {list(said.capture_indexes)} and hands on {said.fc_input_width} "
        f"values with {applied}; by its table it captures {captured}, {states} states of {width} "
        f"side by side, {states * width} values, and {shape}: position-0 acceptance {stated.position0.value:.2f} "
        f"against {resolved.position0.value:.2f}; {action}."
    )
    return Cause(DIFFERS, sentence, stated, resolved, action)


def suspected(pairing: Pairing, one: tuple[Wiring, Wiring], other: tuple[Wiring, Wiring], cause: Cause) -> Cause | None:
    """Each pair is (as the engine has it, what the drafter was made for), of two drafters with different files."""
    change = changes(*one)
    if not change or change != changes(*other):
        return None
    action = f"look at {pairing.engine.title}, not at the drafters"
    sentence = (
        f"Two unlike drafters fail in the same way on {pairing.engine.title}, and the same change mends both "
        f"({', '.join(sorted(change))}): position-0 acceptance {cause.before.position0.value:.2f} here; {action}."
    )
    return Cause(SUSPECTED, sentence, cause.before, cause.after, action)


def changes(engine: Wiring, wanted: Wiring) -> frozenset[str]:
    """What is changed, in words that do not depend on the drafter: captured streams by how far they move."""
    told = set()
    for aspect in differences(engine, wanted):
        if aspect is Aspect.CAPTURE:
            moved = [to - now for now, to in zip(engine.capture, wanted.capture, strict=False)]
            told.add(f"captured streams move by {moved[0]:+d}" if len(set(moved)) == 1 else f"by {moved}")
        elif aspect is Aspect.FUSION:
            told.add(f"fc {'applied' if wanted.fused else 'skipped'}")
        else:
            told.add(f"{aspect.value} {getattr(wanted, aspect.value)}")
    return frozenset(told)
