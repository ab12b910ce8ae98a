"""What was probed, in the words of the contract."""

from __future__ import annotations

from tandem_worker.contract import Cause, ProbeResult
from tandem_worker.probe.run import Probed


def result_of(probed: Probed) -> ProbeResult:
    engine, options = probed.table.engine, probed.options
    assert engine.chain is not None, "the engine's own wiring is always drafted with"
    lower, upper = engine.position0.interval()
    causes = tuple(
        Cause(
            code=cause.code,
            sentence=cause.sentence,
            position0=round(cause.before.position0.value, 4),
            mended=None if cause.after is None else round(cause.after.position0.value, 4),
        )
        for cause in probed.causes
    )
    return ProbeResult(
        text="continuation" if options.new_tokens else "prompt",
        prompts=probed.texts,
        drafts=probed.positions,
        acceptance=tuple(round(share, 4) for share in engine.chain.shares),
        draft_length=options.draft_length,
        accept_length=engine.chain.accept_length,
        position0=engine.position0.value,
        position0_lower=lower,
        position0_upper=upper,
        overlap=engine.overlap.value,
        threshold=options.min_accept_length,
        wirings=len(probed.table.looked) - 1,
        diagnosis=causes[0].sentence if causes else "",
        causes=causes,
    )
