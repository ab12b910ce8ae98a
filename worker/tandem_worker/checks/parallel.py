"""Tensor and pipeline parallelism, and quantisation by argument, against the drafter's own make."""

from __future__ import annotations

from collections.abc import Iterable

from tandem_worker.checkpoint.errors import error, warning
from tandem_worker.checks.deployment import check_deployment
from tandem_worker.checks.engine_resolution import Origin
from tandem_worker.checks.pairing import Pairing
from tandem_worker.finding import Finding

LATENT_BACKENDS = ("trtllm_mla", "cutlass_mla", "flashmla")


def arguments(pairing: Pairing) -> Iterable[Finding]:
    named = pairing.drafter.architecture.value or "of no named class"
    yield from check_deployment(pairing.deployment, pairing.engine, named)


def tensor_parallel(pairing: Pairing) -> Iterable[Finding]:
    size, drafter = pairing.deployment.number("tensor_parallel"), pairing.drafter
    heads, kv_heads = drafter.heads.value, drafter.kv_heads.value
    if pairing.engine.name == "builtin":  # keeps the drafter whole; see `builtin.narrow_reading` for the target
        return
    if size is None or size < 2 or not heads or not kv_heads:
        return
    where = "tensor parallel size"
    if heads % size:
        yield error(
            "TDM-TENSOR-PARALLEL",
            f"The drafter's {heads} heads can not be split over {size} GPUs: it runs at the target's tensor "
            "parallel size.",
            where=where,
            found=size,
            expected=f"a divisor of {heads}",
            action="Choose a tensor parallel size that divides the drafter's heads.",
        )
    elif kv_heads % size:
        asked = pairing.deployment.number("draft_tensor_parallel")
        also = f" A draft_tensor_parallel_size of {asked} has no effect." if asked else ""
        yield warning(
            "TDM-TENSOR-PARALLEL",
            f"The drafter has {kv_heads} key-value heads and runs at the target's tensor parallel size of {size}: they "
            f"are copied, or do not divide.{also}",
            where=where,
            found=size,
            expected=f"a divisor of {kv_heads}",
            action="Measure the drafter's speed, or choose a smaller tensor parallel size.",
        )


def pipeline_parallel(pairing: Pairing) -> Iterable[Finding]:
    size = pairing.deployment.number("pipeline_parallel")
    if size is None or size < 2:
        return
    own = pairing.resolution.parameters.get("embed_tokens.weight") is Origin.FILES
    keys = {
        "family": pairing.resolution.target_family or "",
        "architecture": pairing.target.architecture.value or "",
    }
    effect = pairing.engine.ask("pipeline", "needs_embedding", **keys).value
    if effect == "refused":
        yield error(
            "TDM-PIPELINE-PARALLEL",
            f"{pairing.says} does not run EAGLE-3 over {size} pipeline stages with this target.",
            where="pipeline parallel size",
            found=size,
            expected=1,
            action="Use tensor parallelism.",
        )
    elif not own:
        yield warning(
            "TDM-PIPELINE-PARALLEL",
            f"With {size} pipeline stages the target's embedding is on another one than the drafter, which has "
            "none of its "
            "own (embed_tokens.weight).",
            where="pipeline parallel size",
            found=size,
            expected="embed_tokens.weight in the drafter's files",
            action="Add the target's embedding to the drafter's files, or use one stage.",
        )


def inherited_quantisation(pairing: Pairing) -> Iterable[Finding]:
    asked = pairing.deployment.text("quantization")
    inherits = pairing.engine.table.arguments.get("draft_quantization")
    if asked and inherits and pairing.drafter.quantization.value is None:
        if "draft_quantization" in pairing.deployment.values:
            return
        yield warning(
            "TDM-QUANTISATION-INHERITED",
            f"--quantization {asked} also holds for the drafter, which is not quantised.",
            where="--quantization",
            found=asked,
            expected=f"{inherits[0]} unquant",
            action=f"Add {inherits[0]} unquant.",
        )


def attention_backend(pairing: Pairing) -> Iterable[Finding]:
    """A Llama-style drafter inherits its target's backend, which may compute latent attention alone."""
    asked = pairing.deployment.text("draft_attention_backend") or pairing.deployment.text("attention_backend")
    if asked not in LATENT_BACKENDS or pairing.resolution.family not in ("llama", "qwen3"):
        return
    flag = pairing.engine.table.arguments.get("draft_attention_backend", ("--attention-backend",))[0]
    yield error(
        "TDM-ATTENTION-BACKEND",
        f"The attention backend {asked} computes latent attention (MLA) alone, and the drafter is Llama-style: "
        f"{pairing.engine.title} ends in an error at its first draft.",
        where=flag,
        found=asked,
        expected="a backend for grouped heads",
        action=f"Add {flag} with trtllm_mha, flashinfer, fa3 or triton.",
    )
