"""A fault ends as told only when the object's conditions and the clients say so."""

from __future__ import annotations

from typing import Any

import pytest

from demo import fault_judge as judge
from demo import judge as acts
from demo.load import Statistics
from demo.pairs import on_gpu, pair
from demo.world import Shown, WorkerPod
from tandem_operator.api import SpeculativeDeployment
from unit.test_demo_judge import broken

NOW = "2026-01-01T00:00:00Z"
WRITTEN = on_gpu(pair("tiny", "drafter", "Static"), 0.1, "/cache")
FINE = Statistics(requests=20, tokens=1000, seconds=10.0, median_request_seconds=0.5, failures={})
CUT_OFF = Statistics(20, 700, 10.0, 0.5, {"connection lost": 2, "connection refused": 5})


def shown(**conditions: tuple[str, str, str]) -> Shown:
    """Conditions as (status, reason, message)."""
    listed = [
        {"type": kind, "status": s, "reason": r, "message": m, "lastTransitionTime": NOW, "observedGeneration": 2}
        for kind, (s, r, m) in conditions.items()
    ]
    metadata = {"name": "tiny", "namespace": "default", "uid": "u", "generation": 2}
    return Shown(
        {}, SpeculativeDeployment.model_validate({**WRITTEN, "metadata": metadata, "status": {"conditions": listed}})
    )


UP = shown(Ready=("True", "Serving", ""), SpeculationActive=("True", "Speculating", ""))
DOWN = shown(Ready=("False", "TooFewWorkers", "pod: Error (exit 137)"))
OFF = shown(Ready=("True", "Serving", ""), SpeculationActive=("False", "AcceptLengthBelowFloor", ""))
HELD = shown(Ready=("False", "InsufficientGpuMemory", "0.5 is asked for, but 41.4 GiB is free"))
FULL = shown(Ready=("False", "OutOfGpuMemory", "raise engine.gpuMemoryFraction"))
SLOW = shown(
    Ready=("True", "Degraded", "CudaGraphCaptureFailed: not permitted"), SpeculationActive=("True", "Speculating", "")
)
POD = WorkerPod("a", "1", "tiny", "r", "127.0.0.1", True, False)
OTHER = WorkerPod("b", "2", "tiny", "r", "127.0.0.1", True, False)
SAME, DIFFERENT = [["x", "x"], ["y", "y", "y"]], [["x", "x"], ["y", "z", "y"]]


def test_faults_that_end_well_are_as_told() -> None:
    assert broken(judge.killed(DOWN, UP, 1, False, CUT_OFF)) == []
    assert broken(judge.switched(OFF, UP, [POD], [POD], SAME, FINE)) == []
    assert broken(judge.hogged(HELD, UP, FINE)) == []
    assert broken(judge.out_of_memory(FULL, FINE)) == []
    assert broken(judge.no_graphs(SLOW, SAME, FINE)) == []


@pytest.mark.parametrize(
    ("checks", "not_as_told"),
    [
        (judge.killed(DOWN, UP, 2, False, CUT_OFF), "the container was started again, once"),
        (judge.killed(DOWN, UP, 1, True, CUT_OFF), "nothing of it is left on the GPU"),
        (judge.killed(DOWN, UP, 1, False, FINE), "requests were cut off in mid-text"),
        (
            judge.killed(DOWN, UP, 1, False, Statistics(9, 9, 1, 1, {"connection lost": 1, judge.HUNG: 1})),
            "and none hangs",
        ),
        (judge.switched(OFF, UP, [POD], [OTHER], SAME, FINE), "in the same workers"),
        (judge.switched(OFF, UP, [POD], [POD], DIFFERENT, FINE), "the text of a prompt is always the same"),
        (judge.switched(OFF, UP, [POD], [POD], [["x"], ["y"]], FINE), "the text of a prompt is always the same"),
        (judge.switched(OFF, UP, [POD], [POD], SAME, CUT_OFF), "no client request failed"),
        (judge.hogged(FULL, UP, FINE), "and says why"),
        (judge.out_of_memory(HELD, FINE), "and says why"),
        (judge.no_graphs(UP, SAME, FINE), "and says why"),
    ],
)
def test_faults_that_end_otherwise_are_not_as_told(checks: list[acts.Check], not_as_told: str) -> None:
    assert broken(checks) == [not_as_told]


def test_the_object_on_a_gpu_keeps_what_its_spec_says() -> None:
    spec: Any = WRITTEN["spec"]
    assert spec["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert spec["engine"] == {"gpuMemoryFraction": 0.1}
    with_more = pair("tiny", "drafter", "Static")
    with_more["spec"] |= {"engine": {"gpuMemoryFraction": 0.5}, "pod": {"env": [{"name": "A", "value": "1"}]}}
    placed: Any = on_gpu(with_more, 0.1, "/cache")["spec"]
    assert placed["engine"] == {"gpuMemoryFraction": 0.5}
    assert [variable["name"] for variable in placed["pod"]["env"]] == ["A", "TRITON_CACHE_DIR"]
    assert acts._says(UP, WRITTEN), "variables are compared one by one; defaults beside them do not count"
