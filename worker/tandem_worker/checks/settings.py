"""Settings of the two configs against each other and against the files."""

from __future__ import annotations

from collections.abc import Iterable

from tandem_worker.checkpoint import Checkpoint
from tandem_worker.checkpoint.describe import STORED_DTYPES, declared_dtype, rope_thetas
from tandem_worker.checkpoint.errors import Details, error, listed, note, warning
from tandem_worker.checkpoint.tensors import FLOATS
from tandem_worker.checks.pair import Pair
from tandem_worker.checks.resolution import VOCABULARY
from tandem_worker.finding import Finding


def tied_reduced_vocabulary(pair: Pair) -> Iterable[Finding]:
    """Copied from a target's config: an engine that ties would put the full embedding in place of the draft head."""
    config = pair.drafter_checkpoint.config
    if config.boolean("tie_word_embeddings", default=False) and pair.reduced_vocabulary:
        yield error(
            "TDM-TIED-REDUCED-VOCABULARY",
            f"The drafter's config ties head and embedding, but the head has {pair.drafter.draft_vocab_size} rows and "
            f"the embedding {pair.target.vocab_size}.",
            file=config.file,
            where="tie_word_embeddings",
            found="true",
            expected="false",
            action="Set tie_word_embeddings to false in the drafter's config.json.",
        )


def architecture_name(pair: Pair) -> Iterable[Finding]:
    name, file = pair.drafter.architecture, pair.drafter_checkpoint.config.file
    if "eagle3" not in name.lower():
        message = (
            f"The drafter's architecture is named {name or '(nothing)'}; the builtin engine reads it as EAGLE-3 by its "
            "tensors, other engines go by the name."
        )
        yield note("TDM-ARCHITECTURE-NAME", message, file=file, where="architectures", expected="LlamaForCausalLMEagle3")


def weight_dtypes(pair: Pair) -> Iterable[Finding]:
    """Floats of any width are converted when loaded; anything else means quantised weights."""
    target_names = [name for name in pair.target_checkpoint.tensors if name.endswith("weight")]
    drafter_names = [tensor.name for name, tensor in pair.parameters.items() if name not in VOCABULARY]
    yield from _dtypes("target", pair.target_checkpoint, target_names)
    yield from _dtypes("drafter", pair.drafter_checkpoint, drafter_names)


def rope_theta(pair: Pair) -> Iterable[Finding]:
    """A drafter may be trained with a theta of its own; some engines serve both models from one table."""
    config = pair.drafter_checkpoint.config
    ours, theirs = pair.drafter.rope_theta, pair.target.rope_theta
    for checkpoint in (pair.target_checkpoint, pair.drafter_checkpoint):
        thetas = rope_thetas(checkpoint.config)
        if len(set(thetas)) > 1:
            message = (
                f"rope_theta is {thetas[0]:g} at top level and {thetas[1]:g} in rope_parameters; the first is used."
            )
            yield warning("TDM-ROPE-THETA-TWICE", message, file=checkpoint.config.file, where="rope_theta", found=thetas)
    if not rope_thetas(config):
        message = (
            f"The drafter's config has no rope_theta; the builtin engine takes {ours:g}, the target has {theirs:g}."
        )
        yield note("TDM-ROPE-THETA-DEFAULT", message, file=config.file, where="rope_theta", found=f"{ours:g}")
    elif ours != theirs:
        message = f"The drafter's rope_theta is {ours:g}, the target's {theirs:g}; right if it was trained so."
        found, expected = f"{ours:g}", f"{theirs:g}"
        yield warning("TDM-ROPE-THETA-DIFFERS", message, file=config.file, where="rope_theta", found=found, expected=expected)


def max_positions(pair: Pair) -> Iterable[Finding]:
    ours, theirs = pair.drafter.max_position_embeddings, pair.target.max_position_embeddings
    if ours < theirs:
        yield warning(
            "TDM-MAX-POSITION-SHORTER",
            f"The drafter was trained for {ours} positions, the target for {theirs}: longer texts are drafted poorly.",
            file=pair.drafter_checkpoint.config.file,
            where="max_position_embeddings",
            found=ours,
            expected=f"at least {theirs}",
        )


def _dtypes(of: str, checkpoint: Checkpoint, names: Iterable[str]) -> Iterable[Finding]:
    tensors = [checkpoint.tensors[name] for name in names]
    odd = [tensor for tensor in tensors if tensor.dtype not in FLOATS]
    if odd:
        kinds = listed(sorted({tensor.dtype for tensor in odd}))
        yield error(
            "TDM-DTYPE-NOT-SUPPORTED",
            f"{len(odd)} weights of the {of} are stored as {kinds}, as in {odd[0].name}; the builtin engine reads "
            "floats.",
            file=odd[0].file,
            where=odd[0].name,
            found=kinds,
            expected=listed(FLOATS),
            action=f"Use a {of} that is not quantised.",
        )
    declared = declared_dtype(checkpoint.config)
    known = tuple(STORED_DTYPES.values())
    if declared and declared not in known:
        message = f"The {of}'s config declares the dtype {declared}, which is none of {listed(known)}."
        yield error(
            "TDM-DTYPE-UNKNOWN",
            message,
            file=checkpoint.config.file,
            where="torch_dtype",
            found=declared,
            expected=listed(known),
            action="Correct torch_dtype.",
        )
        return
    stored = sorted({STORED_DTYPES[tensor.dtype] for tensor in tensors if tensor.dtype in FLOATS})
    if declared and stored and stored != [declared]:
        message = f"The {of}'s config declares {declared}; its weights are stored as {listed(stored)}."
        details: Details = {
            "file": checkpoint.config.file,
            "where": "torch_dtype",
            "found": listed(stored),
            "expected": declared,
        }
        yield warning("TDM-DTYPE-DIFFERS", message, **details)
