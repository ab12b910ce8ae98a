"""Settings of the two configs against each other and against the files."""

from __future__ import annotations

from collections.abc import Iterable

from tandem_worker.checkpoint.declared import DeclaredDrafter, DeclaredTarget, Dimensions
from tandem_worker.checkpoint.describe_parts import STORED_DTYPES
from tandem_worker.checkpoint.errors import Details, error, listed, note, warning
from tandem_worker.checkpoint.tensors import FLOATS
from tandem_worker.checks.deployment import truth
from tandem_worker.checks.names import SCALES
from tandem_worker.checks.pairing import Pairing, packed
from tandem_worker.finding import Finding

WIDE = frozenset({"float32", "float64"})
EIGHT_BIT = frozenset({"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})


def target_hidden_size(pairing: Pairing) -> Iterable[Finding]:
    """Where there is no fc that shows it."""
    stated, actual = pairing.drafter.target_hidden_size, pairing.target.hidden_size.value
    fc = pairing.parameters.get("fc.weight")
    if stated.value is None or actual is None or stated.value == actual or (fc is not None and len(fc.shape) == 2):
        return
    yield error(
        "TDM-TARGET-HIDDEN-SIZE",
        f"The drafter was made for a target {stated.value} wide; this target is {actual} wide.",
        file=pairing.config_file,
        where=stated.where,
        found=stated.value,
        expected=actual,
        action="Use the target that the drafter was trained for.",
    )


def rope_theta(pairing: Pairing) -> Iterable[Finding]:
    """A drafter may be trained with a theta of its own; some engines serve both models from one table."""
    for checkpoint, of in ((pairing.target.checkpoint, pairing.target), (pairing.drafter.checkpoint, pairing.drafter)):
        yield from _thetas_of(of, checkpoint.config.file)
    ours, theirs = pairing.drafter.rope.theta, pairing.target.rope.theta
    if not ours.declared:
        taken = f"{ours.value:g}, {ours.default_of}" if ours.value else "the class's default"
        message = f"The drafter's config has no rope_theta ({taken}); the target has {theirs.value}."
        yield note("TDM-ROPE-THETA-DEFAULT", message, file=pairing.config_file, where="rope_theta", found=taken)
    elif theirs.declared and ours.value != theirs.value:
        yield warning(
            "TDM-ROPE-THETA-DIFFERS",
            f"The drafter's rope_theta is {ours.value:g} ({ours.where}), the target's {theirs.value:g} "
            f"({theirs.where}); "
            "right if it was trained so. Engines with one rotary table for both models (vllm-ascend) then "
            "compute one of "
            "them wrongly.",
            file=pairing.config_file,
            where=ours.where,
            found=f"{ours.value:g}",
            expected=f"{theirs.value:g}",
            action="Check the theta of the training run.",
        )


def _thetas_of(of: Dimensions, file: object) -> Iterable[Finding]:
    values = [theta.value for theta in of.rope.thetas]
    if len(set(values)) > 1:
        first, other = of.rope.thetas[0], next(theta for theta in of.rope.thetas if theta.value != values[0])
        message = (
            f"rope_theta is {first.value:g} at {first.where} and {other.value:g} at {other.where}; readers differ "
            "in which "
            "one they take."
        )
        yield warning(
            "TDM-ROPE-THETA-TWICE",
            message,
            file=file,
            where=first.where,
            found=f"{first.value:g} and {other.value:g}",
            expected="one value",
            action="Keep the one of the training run.",
        )


def mrope(pairing: Pairing) -> Iterable[Finding]:
    """Multimodal positions: the target counts in sections, and the drafter does not."""
    theirs = pairing.target.rope.sections
    if theirs and not pairing.drafter.rope.sections:
        yield warning(
            "TDM-MROPE-MISSING",
            f"The target's rotary positions come in sections {list(theirs)} (mrope), and the drafter's config has no "
            "mrope_section: with images its positions are others than the target's.",
            file=pairing.config_file,
            where="rope_scaling.mrope_section",
            expected=list(theirs),
            action="Add the target's mrope_section if the drafter was trained with it.",
        )


def max_positions(pairing: Pairing) -> Iterable[Finding]:
    """The drafter's positions against the length that will be served: the target's, unless the deployment says less."""
    served = pairing.deployment.number("context_length")
    ours, theirs = longest_context(pairing.drafter), served
    if theirs is None and pairing.target.max_positions.declared:
        theirs = longest_context(pairing.target)
    if ours is None or theirs is None or ours >= theirs:
        return
    effect, says = pairing.engine.ask("context", "untrained").value, pairing.says
    overrides = pairing.engine.table.arguments.get("longer_context_env", ())
    allowed = any(truth(pairing.deployment.env.get(name, "")) for name in overrides)
    told = {
        "must_reach": f"{says} does not start, unless the served length is at most {ours}",
        "out_of_bounds": f"{says} reads past its rotary table beyond {ours} tokens",
        "raised": f"{says} raises the limit, and longer texts are drafted as the drafter was never trained to",
    }.get(effect, f"texts beyond {ours} tokens are drafted poorly, or crash engines that size tables by it")
    if allowed:
        told = f"{says} starts all the same with the override, and crashes on a request beyond {ours} tokens"
    safe = served is None or effect == "raised" or (effect == "untrained" and pairing.engine.name == "builtin")
    make = warning if safe and not allowed else error
    length = f"{theirs} tokens are to be served" if served else f"the target has {theirs}"
    yield make(
        "TDM-MAX-POSITION-SHORTER",
        f"The drafter's max_position_embeddings is {pairing.drafter.max_positions.value}, {length}: {told}.",
        file=pairing.config_file,
        where=pairing.drafter.max_positions.where or "max_position_embeddings",
        found=ours,
        expected=f"at least {theirs}",
        action=f"Serve at most {ours} tokens (--context-length, --max-model-len), or use a drafter trained for more.",
    )


def longest_context(of: DeclaredTarget | DeclaredDrafter) -> int | None:
    """As engines derive it: positions x factor, unless the scaling already counts from the original positions."""
    positions, rope = of.max_positions.value, of.rope
    if positions is None or rope.original_positions or rope.kind == "llama3":
        return positions
    return int(positions * rope.factor)


def weight_dtypes(pairing: Pairing) -> Iterable[Finding]:
    """What the drafter's weights are stored as, against what its config and the target declare."""
    drafter = pairing.drafter
    tensors = [tensor for name, tensor in pairing.parameters.items() if name not in ("d2t", "t2d")]
    stored = sorted({STORED_DTYPES[tensor.dtype] for tensor in tensors if tensor.dtype in FLOATS})
    declared = drafter.dtype
    if declared.value and stored and stored != [declared.value]:
        wider = set(stored) & WIDE and declared.value not in WIDE
        narrower = declared.value in WIDE and not set(stored) & WIDE
        message = (
            f"The drafter's config declares {declared.value}; its weights are stored as {listed(stored)}; the target "
            f"declares {pairing.target.dtype.value}."
        )
        details: Details = {"file": pairing.config_file, "where": declared.where, "found": listed(stored)}
        details["expected"] = declared.value
        make = warning if wider or narrower else note
        yield make("TDM-DTYPE-DIFFERS", message, **details)
    scaled = [key for key in drafter.checkpoint.tensors if SCALES.search(key)]
    eight = [
        tensor for tensor in tensors if tensor.dtype in EIGHT_BIT or (packed(tensor) and "lm_head" not in tensor.name)
    ]
    aside = drafter.checkpoint.path / "hf_quant_config.json"  # where ModelOpt's exports say it
    if eight and drafter.quantization.value is None and not aside.exists():
        scales = f", with {len(scaled)} scales" if scaled else " and there are no scales"
        yield warning(
            "TDM-QUANTISATION-UNSTATED",
            f"{len(eight)} weights of the drafter are stored as {eight[0].dtype}{scales}, and its config has no "
            "quantization_config: engines then take the numbers as they stand.",
            file=pairing.config_file,
            where="quantization_config",
            found=eight[0].dtype,
            expected="a quantization_config",
            action="Add the quantization_config of the export.",
        )


def defaults_of_target(pairing: Pairing) -> Iterable[Finding]:
    """Fields that a nested target leaves to its class."""
    target = pairing.target
    open_fields = {"vocab_size": target.vocab_size, "max_position_embeddings": target.max_positions}
    filled = [f"{name} {fact.value} ({fact.default_of})" for name, fact in open_fields.items() if fact.default_of]
    unknown = [name for name, fact in open_fields.items() if fact.value is None]
    if filled or unknown:
        message = "The target's config leaves fields to its class: " + listed(
            [*filled, *(f"{n} unknown" for n in unknown)]
        )
        yield note("TDM-TARGET-DEFAULTS", message + ".", file=target.checkpoint.config.file)
