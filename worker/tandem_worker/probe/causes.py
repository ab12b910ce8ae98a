"""The words for what two wirings differ in: a stable code, and what the engine does where the drafter needs another."""

from __future__ import annotations

from tandem_worker.probe.wiring import Aspect, DraftIds, Source, View, Wiring

CODES = {
    Aspect.RANDOM: "TDM-TENSORS-DROPPED",
    Aspect.VIEW: "TDM-CAPTURE-NORM",
    Aspect.NORM_BEFORE_RESIDUAL: "TDM-NORM-BEFORE-RESIDUAL",
    Aspect.NORM_BEFORE_FC: "TDM-NORM-BEFORE-FC",
    Aspect.FC_NORM: "TDM-FC-NORM",
    Aspect.NORM_OUTPUT: "TDM-NORM-OUTPUT",
    Aspect.ROPE_THETA: "TDM-ROPE-THETA-WRONG",
    Aspect.ROPE_PAIRS: "TDM-ROPE-PAIRS",
}
STATIC = {
    "TDM-CAPTURE-INDEX-MISMATCH": (
        "TDM-CAPTURE-INDEX-MISMATCH",
        "TDM-LAYER-IDS-IGNORED",
        "TDM-LAYER-IDS-DISAGREE",
        "TDM-LAYER-IDS-CONVENTION",
        "TDM-LAYER-IDS-OUT-OF-RANGE",
    ),
    "TDM-SLOT-ORDER": ("TDM-CAPTURE-INDEX-MISMATCH", "TDM-CAPTURE-INDEXES-UNSORTED"),
    "TDM-TENSORS-DROPPED": ("TDM-TENSORS-DROPPED", "TDM-PARAMETERS-MISSING"),
    "TDM-PARAMETERS-MISSING": ("TDM-PARAMETERS-MISSING", "TDM-TENSORS-DROPPED"),
    "TDM-D2T-HOLDS-IDS": ("TDM-D2T-HOLDS-IDS", "TDM-D2T-OUT-OF-RANGE", "TDM-D2T-DUPLICATES", "TDM-D2T-AGAINST-T2D"),
    "TDM-D2T-AGAINST-T2D": (
        "TDM-D2T-AGAINST-T2D",
        "TDM-D2T-NEVER-FILLED",
        "TDM-D2T-OUT-OF-RANGE",
        "TDM-D2T-DUPLICATES",
        "TDM-DRAFT-VOCABULARY-MAP-MISSING",
    ),
    "TDM-FC-UNUSED": ("TDM-FC-UNUSED",),
    "TDM-EMBEDDING-OVERWRITTEN": ("TDM-EMBEDDING-OVERWRITTEN",),
    "TDM-ROPE-THETA-WRONG": ("TDM-ROPE-THETA-DIFFERS", "TDM-ROPE-THETA-TWICE", "TDM-ROPE-THETA-DEFAULT"),
    "TDM-NORM-BEFORE-RESIDUAL": ("TDM-NORM-BEFORE-RESIDUAL-DEFAULT", "TDM-FLAG-IGNORED"),
    "TDM-NORM-BEFORE-FC": ("TDM-FLAG-IGNORED", "TDM-TENSORS-DROPPED"),
    "TDM-FC-NORM": ("TDM-FLAG-IGNORED", "TDM-TENSORS-DROPPED"),
}
"""Cause -> the findings of the static checks that tell of the same mistake."""


def code_of(aspect: Aspect, engine: Wiring, wanted: Wiring) -> str:
    if aspect is Aspect.CAPTURE:
        same = sorted(engine.capture) == sorted(wanted.capture)
        return "TDM-SLOT-ORDER" if same else "TDM-CAPTURE-INDEX-MISMATCH"
    if aspect is Aspect.FUSION:
        return "TDM-FC-UNUSED" if wanted.fused else "TDM-FC-APPLIED"
    if aspect is Aspect.IDS:
        return {
            DraftIds.IDS: "TDM-D2T-HOLDS-IDS",
            DraftIds.OFFSETS: "TDM-D2T-HOLDS-OFFSETS",
            DraftIds.MARKED: "TDM-D2T-AGAINST-T2D",
            DraftIds.IGNORED: "TDM-D2T-NOT-MEANT",
        }[wanted.ids]
    if aspect is Aspect.EMBEDDING:
        if engine.embedding is Source.RANDOM:
            return "TDM-PARAMETERS-MISSING"
        return "TDM-EMBEDDING-OVERWRITTEN" if wanted.embedding is Source.OWN else "TDM-EMBEDDING-NOT-ITS-OWN"
    if aspect is Aspect.HEAD:
        return "TDM-PARAMETERS-MISSING" if engine.head is Source.RANDOM else "TDM-HEAD-WRONG"
    return CODES[aspect]


def says(aspect: Aspect, engine: Wiring, wanted: Wiring) -> str:
    """Goes on from the engine's name: what it will do, and what the drafter was trained for."""
    if aspect is Aspect.CAPTURE:
        return f"will capture {list(engine.capture)}; this drafter was trained on {list(wanted.capture)}"
    if aspect is Aspect.FUSION:
        return _fusion(engine, wanted)
    if aspect is Aspect.VIEW:
        return f"captures {_taken(engine.view)}; this drafter was trained on {_taken(wanted.view)}"
    if aspect is Aspect.IDS:
        return f"will read {_ids(engine.ids)}; this drafter needs {_ids(wanted.ids)}"
    if aspect is Aspect.RANDOM:
        lost = sorted(engine.random - wanted.random)
        shown = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        return f"will drop tensors under their names and leave {shown} at random; with them loaded the drafter predicts"
    if aspect in (Aspect.EMBEDDING, Aspect.HEAD):
        name = "an embedding" if aspect is Aspect.EMBEDDING else "a head"
        one, other = (getattr(wiring, aspect.value) for wiring in (engine, wanted))
        return f"will draft with {name} that is {one.value}; this drafter needs {other.value}"
    if aspect is Aspect.ROPE_THETA:
        return f"will rotate with theta {engine.rope_theta:g}; this drafter was trained with {wanted.rope_theta:g}"
    if aspect is Aspect.ROPE_PAIRS:
        return (
            f"rotates {engine.rope_pairs.value} of a head together; this drafter was trained with {wanted.rope_pairs}"
        )
    now = getattr(engine, aspect.value)
    return f"will run it with {aspect.value} {str(now).lower()}; this drafter was trained with {str(not now).lower()}"


def _fusion(engine: Wiring, wanted: Wiring) -> str:
    if wanted.fused:
        return (
            "will skip fc and feed the drafter the target's last hidden state; this drafter was trained on "
            f"{list(wanted.capture)} through fc"
        )
    return (
        f"will capture {list(engine.capture)} and apply fc; this drafter was trained on the last hidden state without "
        "fc"
    )


def _taken(view: View) -> str:
    return {View.STREAM: "streams as they are"}.get(view, view.value.replace("the stream", "streams", 1))


def _ids(ids: DraftIds) -> str:
    return {
        DraftIds.OFFSETS: "d2t as offsets",
        DraftIds.IDS: "d2t as target ids",
        DraftIds.IGNORED: "draft ids as target ids",
        DraftIds.MARKED: "the ids that t2d marks",
    }[ids]
