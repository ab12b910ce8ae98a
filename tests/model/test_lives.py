"""A life in which the operator dies between any two writes, and sees things late, ends as the one without. The same
lives each time; `python -m model.soak` goes on with others."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from model.lives import ends_as_undisturbed


@given(data=st.data())
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # `model.soak --shrink` makes a finding minimal
)
def test_a_disturbed_life_ends_as_one_that_nothing_disturbed(data: st.DataObject) -> None:
    ends_as_undisturbed(data)
