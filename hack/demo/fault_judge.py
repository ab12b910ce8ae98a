"""Did a fault end as it should? Pure, like `judge`."""

from __future__ import annotations

from collections.abc import Sequence

from demo.judge import Check, condition, no_failure
from demo.load import REQUEST_LIMIT_SECONDS, Statistics
from demo.world import Shown, WorkerPod

HUNG = f"no answer in {REQUEST_LIMIT_SECONDS} s"


def killed(down: Shown, up: Shown, restarts: int, left_on_gpu: bool, load: Statistics) -> list[Check]:
    lost = sum(count for kind, count in load.failures.items() if kind == "connection lost")
    hung = load.failures.get(HUNG, 0)
    return [
        condition(down, "Ready", "False", "the object says that nobody serves"),
        Check("and why", "137" in down.message_of("Ready"), down.message_of("Ready")),
        condition(up, "Ready", "True", "it serves again"),
        Check("the container was started again, once", restarts == 1, f"{restarts} restarts"),
        Check("nothing of it is left on the GPU", not left_on_gpu, "by nvidia-smi's list of processes"),
        Check("requests were cut off in mid-text", lost > 0, f"{lost} lost their connection"),
        Check("and none hangs", hung == 0, f"{hung} of {load.requests} got no answer"),
        Check("others were answered, before and after", load.requests > load.failed, f"{load.requests - load.failed}"),
    ]


def switched(
    off: Shown,
    on: Shown,
    before: Sequence[WorkerPod],
    after: Sequence[WorkerPod],
    texts: Sequence[Sequence[str]],
    load: Statistics,
) -> list[Check]:
    same = {pod.uid for pod in before} == {pod.uid for pod in after}
    return [
        condition(off, "SpeculationActive", "False", "speculation went off"),
        condition(off, "Ready", "True", "while the target went on serving"),
        condition(on, "SpeculationActive", "True", "and on again"),
        Check("in the same workers", same, ", ".join(pod.name for pod in after)),
        _same_texts(texts),
        no_failure(load),
    ]


def hogged(refused: Shown, up: Shown, load: Statistics) -> list[Check]:
    return [
        condition(refused, "Ready", "False", "the worker does not start"),
        _says(refused, "InsufficientGpuMemory", "GiB is free"),
        condition(up, "Ready", "True", "it starts when there is room"),
        no_failure(load),
    ]


def out_of_memory(refused: Shown, load: Statistics) -> list[Check]:
    return [
        condition(refused, "Ready", "False", "the worker does not start"),
        _says(refused, "OutOfGpuMemory", "engine.gpuMemoryFraction"),
        no_failure(load),
    ]


def no_graphs(shown: Shown, texts: Sequence[Sequence[str]], load: Statistics) -> list[Check]:
    return [
        condition(shown, "Ready", "True", "it serves"),
        _says(shown, "Degraded", "CudaGraphCaptureFailed"),
        condition(shown, "SpeculationActive", "True", "it speculates"),
        _same_texts(texts),
        no_failure(load),
    ]


def _says(shown: Shown, reason: str, part: str) -> Check:
    message = shown.message_of("Ready")
    return Check("and says why", shown.reason_of("Ready") == reason and part in message, f"{reason}: {message}")


def _same_texts(texts: Sequence[Sequence[str]]) -> Check:
    """Of each prompt all answers, whatever ran beside it."""
    other = sum(text != of_prompt[0] for of_prompt in texts for text in of_prompt)
    many = sum(len(of_prompt) for of_prompt in texts)
    compared = many > len(texts) > 0
    return Check("the text of a prompt is always the same", compared and not other, f"{other} of {many} differ")
