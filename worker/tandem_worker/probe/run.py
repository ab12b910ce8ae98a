"""The probe: both models run for real on calibration prompts.

The target writes a greedy continuation of each prompt; draft rounds are replayed on it with the declared wiring. When
the accept length is below the threshold, other wirings are replayed on the same states, and the one that works names
the cause. Arithmetic is float32 on the CPU, in the target's dtype on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from tandem_worker.checkpoint import CheckpointError
from tandem_worker.checkpoint.errors import error, warning
from tandem_worker.checks import Pair, drafter_parameters
from tandem_worker.contract import Finding, ProbeResult
from tandem_worker.models.eagle3 import Eagle3
from tandem_worker.models.llama import Llama
from tandem_worker.models.load import load_drafter, load_target
from tandem_worker.probe.diagnosis import better_wiring, nothing_helps
from tandem_worker.probe.generate import continue_greedily
from tandem_worker.probe.prompts import read_prompts, tokenize
from tandem_worker.probe.replay import Tally, calibrate, replay
from tandem_worker.probe.wirings import declared, hypotheses

NEW_TOKENS = 64
LONGEST_PROMPT_TOKENS = 256
LEAST_DRAFTS = 30
SMALL_PARAMETERS = 50_000_000
DOUBTFUL_POSITION0 = 0.6
"""Healthy drafters do better on text of their target; below it other wirings are tried even above the threshold."""


@torch.inference_mode()
def probe(
    pair: Pair, draft_length: int, min_accept_length: float, prompts_file: Path | None
) -> tuple[ProbeResult | None, tuple[Finding, ...]]:
    """What was measured, and an error when it is below the threshold or not a number.

    Raises CheckpointError for what can not be run: a tokenizer, prompts, too little text to draft on.
    """
    longest = max(1, min(LONGEST_PROMPT_TOKENS, pair.target.max_position_embeddings - NEW_TOKENS))
    prompts = tokenize(read_prompts(prompts_file), pair.target_checkpoint, pair.target.vocab_size, longest)
    llama, drafter = _load(pair)
    texts = continue_greedily(llama, prompts, NEW_TOKENS)
    calibration = calibrate(llama, texts, [len(prompt) for prompt in prompts])
    if not calibration.finite:
        return None, (_not_finite("target", llama, pair),)
    with _watched(drafter) as seen:
        tally = replay(calibration, drafter, declared(pair), draft_length)
    if not all(seen):
        return None, (_not_finite("drafter", drafter, pair),)
    if tally.drafts < LEAST_DRAFTS:
        raise CheckpointError(_too_little(pair, tally))
    below = tally.accept_length < min_accept_length
    diagnosis = ""
    if below or tally.position0 < DOUBTFUL_POSITION0:
        tried = [(wiring, replay(calibration, drafter, wiring, draft_length)) for wiring in hypotheses(pair, drafter)]
        diagnosis = better_wiring(tally, tried, min_accept_length) or (nothing_helps(tally, tried) if below else "")
    result = ProbeResult(
        prompts=len(prompts),
        drafts=tally.drafts,
        accepted_per_position=tally.accepted,
        draft_length=draft_length,
        accept_length=tally.accept_length,
        position0=tally.position0,
        threshold=min_accept_length,
        diagnosis=diagnosis,
    )
    return result, tuple(_judge(pair, result))


def _load(pair: Pair) -> tuple[Llama, Eagle3]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float32 if device.type == "cpu" else getattr(torch, pair.target.dtype)
    llama = load_target(pair.target_checkpoint, pair.target, dtype, device)
    if sum(parameter.numel() for parameter in llama.parameters()) < SMALL_PARAMETERS:
        # Threads that wait for each other's few microseconds of work cost ten times the work on a busy machine.
        torch.set_num_threads(1)
    return llama, load_drafter(pair.drafter_checkpoint, pair.drafter, llama, dtype, device).drafter


@contextmanager
def _watched(drafter: Eagle3) -> Iterator[list[bool]]:
    """Collects whether each draft step's logits are finite: argmax alone would hide a NaN."""
    seen: list[bool] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        seen.append(bool(torch.isfinite(logits).all()))

    handle = drafter.lm_head.register_forward_hook(look)
    try:
        yield seen
    finally:
        handle.remove()


def _not_finite(of: str, model: nn.Module, pair: Pair) -> Finding:
    checkpoint = pair.target_checkpoint if of == "target" else pair.drafter_checkpoint
    own = checkpoint.tensors if of == "target" else drafter_parameters(checkpoint, pair.drafter)
    for name, weight in model.named_parameters():
        bad = int((~torch.isfinite(weight)).sum())
        if bad and name in own:
            return error(
                "TDM-NAN-LOGITS",
                f"The {of}'s logits are not finite: {own[name].name} holds {bad} values that are NaN or infinite.",
                file=own[name].file,
                where=own[name].name,
                found=f"{bad} of {weight.numel()} values",
                action="Restore the file, or use an earlier checkpoint.",
            )
    return error(
        "TDM-NAN-LOGITS",
        f"The {of}'s logits are not finite although all of its weights are: it overflows.",
        file=checkpoint.path,
        action="Check the scale of the weights and the dtype they were trained in.",
    )


def _too_little(pair: Pair, tally: Tally) -> Finding:
    return error(
        "TDM-TOO-LITTLE-TEXT",
        f"The target's continuations gave {tally.drafts} drafts; at least {LEAST_DRAFTS} are needed to judge.",
        file=pair.target_checkpoint.path,
        found=tally.drafts,
        expected=f"at least {LEAST_DRAFTS}",
        action="Give --prompts that this target answers at some length.",
    )


def _judge(pair: Pair, result: ProbeResult) -> Iterator[Finding]:
    if result.accept_length >= result.threshold:
        if result.diagnosis:
            yield warning("TDM-OTHER-WIRING-BETTER", result.diagnosis, file=pair.drafter_checkpoint.config.file)
        return
    yield error(
        "TDM-ACCEPT-LENGTH-BELOW-THRESHOLD",
        f"Accept length {result.accept_length:.2f} over {result.drafts} drafts is below {result.threshold:.2f}. "
        + result.diagnosis,
        file=pair.drafter_checkpoint.path,
        found=f"{result.accept_length:.2f}",
        expected=f"at least {result.threshold:.2f}",
        action="Correct what the diagnosis names, or use a drafter that was trained for this target.",
    )
