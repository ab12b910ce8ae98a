"""What the builtin engine alone refuses: families and settings that its models do not compute, and a target that lacks
a tensor or has one of another shape. Other engines' own loaders look at the target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tandem_worker.checkpoint import (
    Checkpoint,
    CheckpointError,
    Drafter,
    Target,
    TensorInfo,
    read_drafter,
    read_target,
)
from tandem_worker.checkpoint.describe_parts import STORED_DTYPES, declared_dtype
from tandem_worker.checkpoint.errors import error, listed, note
from tandem_worker.checkpoint.source import UNAPPLIED, Source
from tandem_worker.checkpoint.tensors import FLOATS
from tandem_worker.checks.pairing import Pairing
from tandem_worker.finding import Finding

Shape = tuple[int, ...]


def narrow_reading(pairing: Pairing) -> Iterable[Finding]:
    """The engine's own reading of both configs, which refuses all that its models would compute without.

    Raises CheckpointError (CouldNotCheck) for a target of a family or with a setting that it does not know.
    """
    if pairing.engine.name != "builtin":
        return
    target = read_target(pairing.target.checkpoint)
    drafter = None
    try:
        drafter = read_drafter(pairing.drafter.checkpoint, target)
    except CheckpointError as failure:
        yield from failure.findings
    served = [*unserved(target, drafter, pairing.target.checkpoint, pairing.drafter.checkpoint)]
    yield from served
    yield from _declared_dtype("drafter", pairing.drafter.checkpoint)
    yield from unread_weights(pairing.parameters.values())
    if not served:
        yield from _declared_dtype("target", pairing.target.checkpoint)
        yield from _torn(target, pairing)
        yield from _target_tensors(target, pairing.target.checkpoint)


def unserved(
    target: Target, drafter: Drafter | None, target_checkpoint: Checkpoint, drafter_checkpoint: Checkpoint | None
) -> Iterable[Finding]:
    """What the models compute, and so the probe runs, but the engine does not serve: its cache holds plain keys and
    values, and its weights are all in memory.
    """
    reasons = []
    if target.mla or (drafter and drafter.mla):
        reasons.append("latent attention")
    if target.moe:
        reasons.append("experts")
    if reasons:
        checkpoint = target_checkpoint if target.moe or target.mla else drafter_checkpoint
        assert checkpoint is not None
        architecture = target.architecture if checkpoint is target_checkpoint or not drafter else drafter.architecture
        yield error(
            "TDM-NOT-SERVED",
            f"{architecture} has {' and '.join(reasons)}, which the builtin engine probes but does not serve.",
            file=checkpoint.config.file,
            where="architectures",
            found=architecture,
            expected="a Llama, Mistral, Qwen2 or Qwen3 target, and a drafter with plain attention",
            action="Serve the pair with SGLang or vLLM; validate it for that engine.",
        )


KERNEL_FAMILIES = frozenset({"llama", "qwen2", "qwen3"})
HEAD_DIMS = (16, 32, 64, 128, 256)


def beyond_kernels(target: Target, drafter: Drafter | None) -> list[str]:
    """What the models and the engine on a CPU compute, and the kernels of a GPU do not yet."""
    lacks = {
        f"targets of the family {target.family}": target.family not in KERNEL_FAMILIES,
        "a bias of attention's output": target.out_bias,
        **_beyond_shapes("the target", target),
    }
    if drafter:
        lacks |= {
            "the drafter's biases of fc and of attention's output": drafter.out_bias or drafter.fc_bias,
            "a drafter of several layers": drafter.layers > 1,
            **_beyond_shapes("the drafter", drafter),
        }
    return [name for name, wanted in lacks.items() if wanted]


def indivisible(target: Target, gpus: int) -> str:
    """A sentence when so many GPUs can not share the target, or nothing. Each takes whole heads, and columns of the MLP
    that the copy engine can read."""
    parts = {
        f"{target.heads} attention heads": target.heads,
        f"{target.kv_heads} key-value heads": target.kv_heads,
        f"an MLP of {target.intermediate_size} columns, in parts that are multiples of 8": target.intermediate_size / 8,
        f"a vocabulary of {target.vocab_size}": target.vocab_size,
    }
    if gpus == 1 or not (torn := [name for name, number in parts.items() if number % gpus]):
        return ""
    fitting = [str(n) for n in range(2, target.kv_heads + 1) if not any(number % n for number in parts.values())]
    choose = f"choose {' or '.join(fitting)}, or serve on one" if fitting else "serve it on one"
    return (
        f"{gpus} GPUs can not share this target: it has {', '.join(torn)}, which does not divide by {gpus}; {choose}."
    )


def _beyond_shapes(whose: str, shape: Target | Drafter) -> dict[str, bool]:
    """Heads are tiles of powers of 2, and the copy engine wants rows that begin at multiples of 16 bytes."""
    widths = {"hidden_size": shape.hidden_size, "intermediate_size": shape.intermediate_size}
    odd = {f"{whose}'s {name} of {width}, which is no multiple of 8": width % 8 > 0 for name, width in widths.items()}
    sizes = ", ".join(map(str, HEAD_DIMS))
    return {f"{whose}'s head_dim of {shape.head_dim}, which is none of {sizes}": shape.head_dim not in HEAD_DIMS, **odd}


def _torn(target: Target, pairing: Pairing) -> Iterable[Finding]:
    gpus = pairing.deployment.number("tensor_parallel") or 1
    if message := indivisible(target, gpus):
        yield error(
            "TDM-TENSOR-PARALLEL",
            message,
            file=pairing.target.checkpoint.config.file,
            where="tensor parallel size",
            found=gpus,
            expected="a divisor of all of these",
            action="Choose another number of GPUs.",
        )


def _target_tensors(target: Target, checkpoint: Checkpoint) -> Iterable[Finding]:
    """Every tensor that the engine reads of the target is there, has its shape, and is stored in a way that it reads:
    the very search that loading begins with.
    """
    try:
        Source(checkpoint).stored(_target_shapes(target).items())
    except CheckpointError as failure:
        yield from failure.findings
    else:
        yield from _unapplied_scales(checkpoint)


def _unapplied_scales(checkpoint: Checkpoint) -> Iterable[Finding]:
    names = [name for name in checkpoint.tensors if name.rpartition(".")[2] in UNAPPLIED]
    if names:
        kinds = Counter(name.rpartition(".")[2] for name in names)
        counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        yield note(
            "TDM-SCALES-NOT-APPLIED",
            f"The target's files hold scales of activations or of the KV cache ({counted}); the builtin engine rounds "
            "neither, and does not apply them.",
            file=checkpoint.path,
            where=names[0],
            found=counted,
        )


def _target_shapes(target: Target) -> Mapping[str, Shape]:
    hidden, wide = target.hidden_size, target.intermediate_size
    queries, keys = target.heads * target.head_dim, target.kv_heads * target.head_dim
    layer: dict[str, Shape] = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    if target.family == "qwen3":
        layer |= {f"self_attn.{name}_norm": (target.head_dim,) for name in "qk"}
    parts = {f"{name}.weight": shape for name, shape in layer.items()}
    if target.qkv_bias:
        parts |= {f"self_attn.{name}_proj.bias": layer[f"self_attn.{name}_proj"][:1] for name in "qkv"}
    if target.out_bias:
        parts["self_attn.o_proj.bias"] = (hidden,)
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (target.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not target.tie_word_embeddings:
        shapes["lm_head.weight"] = (target.vocab_size, hidden)
    for i in range(target.layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in parts.items()}
    return shapes


def unread_weights(tensors: Iterable[TensorInfo]) -> Iterable[Finding]:
    """Of a drafter: floats of any width are converted when loaded; anything else means quantised weights."""
    weights = [tensor for tensor in tensors if tensor.name.endswith("weight")]
    odd = [tensor for tensor in weights if tensor.dtype not in FLOATS]
    if odd:
        kinds = listed(sorted({tensor.dtype for tensor in odd}))
        yield error(
            "TDM-DTYPE-NOT-SUPPORTED",
            f"{len(odd)} weights of the drafter are stored as {kinds}, as in {odd[0].name}; the builtin engine reads "
            "floats.",
            file=odd[0].file,
            where=odd[0].name,
            found=kinds,
            expected=listed(FLOATS),
            action="Use a drafter that is not quantised.",
        )


def _declared_dtype(of: str, checkpoint: Checkpoint) -> Iterable[Finding]:
    declared, known = declared_dtype(checkpoint.config), tuple(STORED_DTYPES.values())
    if declared and declared not in known:
        yield error(
            "TDM-DTYPE-UNKNOWN",
            f"The {of}'s config declares the dtype {declared}, which is none of {listed(known)}.",
            file=checkpoint.config.file,
            where="torch_dtype",
            found=declared,
            expected=listed(known),
            action="Correct torch_dtype.",
        )
