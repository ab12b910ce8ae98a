"""Shapes in the files against the shapes that the configs imply. [outputs, inputs] for matrices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tandem_worker.checkpoint import Drafter, Target, TensorInfo
from tandem_worker.checkpoint.errors import Details, error, listed
from tandem_worker.checks.pair import Pair
from tandem_worker.finding import Finding

Shape = tuple[int, ...]


def fc_width(pair: Pair) -> Iterable[Finding]:
    """fc reads the captured states side by side: [H of the drafter, states x H of the target]."""
    fc = pair.parameters.get("fc.weight")
    states, target_hidden = len(pair.drafter.capture_indexes), pair.target.hidden_size
    expected = (pair.drafter.hidden_size, states * target_hidden)
    if fc is None or fc.shape == expected:
        return
    details: Details = {"file": fc.file, "where": fc.name, "found": list(fc.shape), "expected": list(expected)}
    details["action"] = "Use an EAGLE-3 drafter that was trained on three states of this target."
    if len(fc.shape) == 2 and fc.shape[1] == 2 * pair.drafter.hidden_size:
        message = (
            f"fc.weight is {list(fc.shape)}: inputs of 2 x hidden are the EAGLE-1 layout (embedding and one state); "
            f"EAGLE-3 has {states} states of {target_hidden}."
        )
        yield error("TDM-EAGLE1-LAYOUT", message, **details)
        return
    width = f"{fc.shape[1]} inputs = {fc.shape[1] / target_hidden:g} states" if len(fc.shape) == 2 else "not a matrix"
    message = (
        f"fc.weight is {list(fc.shape)} ({width} of the target's {target_hidden}); the builtin engine gives it "
        f"{states} states of {target_hidden} and takes {expected[0]} outputs."
    )
    yield error("TDM-FC-WIDTH", message, **details)


def target_hidden_size(pair: Pair) -> Iterable[Finding]:
    stated, actual = pair.drafter.target_hidden_size, pair.target.hidden_size
    if stated != actual:
        yield error(
            "TDM-TARGET-HIDDEN-SIZE",
            f"The drafter was made for a target {stated} wide; this target is {actual} wide.",
            file=pair.drafter_checkpoint.config.file,
            where="target_hidden_size",
            found=stated,
            expected=actual,
            action="Use the target that the drafter was trained for.",
        )


def drafter_shapes(pair: Pair) -> Iterable[Finding]:
    yield from _compare("Drafter", pair.parameters, _drafter_shapes(pair.drafter), HINTS)


def head_dim_guess(pair: Pair) -> Iterable[Finding]:
    """Without `head_dim` it is guessed as hidden / heads, which is wrong for gpt-oss, Qwen3 and Gemma drafters."""
    q = pair.parameters.get("midlayer.self_attn.q_proj.weight")
    config, heads = pair.drafter_checkpoint.config, pair.drafter.heads
    if q is None or config.has("head_dim") or len(q.shape) != 2 or q.shape[0] == heads * pair.drafter.head_dim:
        return
    stored = f"{q.shape[0] / heads:g}"
    yield error(
        "TDM-HEAD-DIM-GUESSED",
        f"The config has no head_dim; hidden / heads gives {pair.drafter.head_dim}, the tensors say {stored}.",
        file=config.file,
        where="head_dim",
        found=pair.drafter.head_dim,
        expected=stored,
        action=f'Add "head_dim": {stored} to the drafter\'s config.json.',
    )


def target_shapes(pair: Pair) -> Iterable[Finding]:
    """Every tensor that the engine reads of the target is there and has its shape."""
    expected = _target_shapes(pair.target)
    tensors = pair.target_checkpoint.tensors
    missing = [name for name in expected if name not in tensors]
    if missing:
        yield error(
            "TDM-TARGET-TENSORS-MISSING",
            f"The target lacks {len(missing)} tensors that its config implies: {listed(missing)}.",
            file=pair.target_checkpoint.path,
            where=missing[0],
            found=f"{len(missing)} missing",
            expected=f"{len(expected)} tensors",
            action="Check num_hidden_layers and that all shards are there.",
        )
    yield from _compare("Target", tensors, expected, {})


def _drafter_shapes(drafter: Drafter) -> dict[str, Shape]:
    """Of everything but fc and the two vocabulary maps, which have checks of their own."""
    hidden, wide = drafter.hidden_size, drafter.intermediate_size
    attention = _attention_shapes(drafter, inputs=2 * hidden)
    mlp = {"gate_proj": (wide, hidden), "up_proj": (wide, hidden), "down_proj": (hidden, wide)}
    norms = ("midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm", "norm")
    return {
        **{f"midlayer.self_attn.{name}.weight": shape for name, shape in attention.items()},
        **{f"midlayer.mlp.{name}.weight": shape for name, shape in mlp.items()},
        **{f"{name}.weight": (hidden,) for name in norms},
        "lm_head.weight": (drafter.draft_vocab_size, hidden),
        "embed_tokens.weight": (drafter.vocab_size, hidden),
    }


def _target_shapes(target: Target) -> dict[str, Shape]:
    hidden, wide = target.hidden_size, target.intermediate_size
    layer = {
        **{f"self_attn.{name}": shape for name, shape in _attention_shapes(target, inputs=hidden).items()},
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (target.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not target.tie_word_embeddings:
        shapes["lm_head.weight"] = (target.vocab_size, hidden)
    for i in range(target.layers):
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def _attention_shapes(model: Target | Drafter, inputs: int) -> dict[str, Shape]:
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    return {
        "q_proj": (queries, inputs),
        "k_proj": (keys, inputs),
        "v_proj": (keys, inputs),
        "o_proj": (model.hidden_size, queries),
    }


HINTS: Mapping[str, str] = {
    "midlayer.self_attn.q_proj.weight": "heads x head_dim rows, 2 x hidden columns (embedding beside feature)",
    "midlayer.self_attn.k_proj.weight": "key-value heads x head_dim rows, 2 x hidden columns",
    "midlayer.self_attn.v_proj.weight": "key-value heads x head_dim rows, 2 x hidden columns",
    "midlayer.self_attn.o_proj.weight": "hidden rows, heads x head_dim columns",
    "lm_head.weight": "draft_vocab_size rows (vocab_size when the config has none), hidden columns",
    "embed_tokens.weight": "vocab_size rows, hidden columns",
}


def _compare(
    of: str, tensors: Mapping[str, TensorInfo], expected: Mapping[str, Shape], hints: Mapping[str, str]
) -> Iterable[Finding]:
    """One finding for each kind of tensor that is wrong: the layers of a target are all wrong in the same way."""
    wrong: dict[str, list[str]] = {}
    for name, shape in expected.items():
        if name in tensors and tensors[name].shape != shape:
            wrong.setdefault(name.split(".", 3)[-1] if name.startswith("model.layers.") else name, []).append(name)
    for names in wrong.values():
        tensor, shape = tensors[names[0]], expected[names[0]]
        more = f" (and {len(names) - 1} like it)" if len(names) > 1 else ""
        hint = hints.get(names[0], "")
        yield error(
            f"TDM-{of.upper()}-SHAPE",
            f"{tensor.name}{more} is {list(tensor.shape)}; the config implies {list(shape)}"
            + (f": {hint}." if hint else "."),
            file=tensor.file,
            where=tensor.name,
            found=list(tensor.shape),
            expected=list(shape),
            action="Use the config that belongs to these weights.",
        )
