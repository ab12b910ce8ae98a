"""The plan keeps its promises over twenty thousand random steps, the same ones each time, so that what fails here was
broken by a change. `python -m model.soak` goes on with others."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from model.machine import Rollouts

STEPS_OF_ONE = 100
SETTINGS = settings(
    max_examples=260,
    stateful_step_count=STEPS_OF_ONE,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # shrinking takes minutes: `model.soak --shrink` does it
)


def test_promises_are_kept_whatever_happens() -> None:
    before = Rollouts.steps
    run_state_machine_as_test(Rollouts, settings=SETTINGS)
    assert Rollouts.steps - before >= 20_000
