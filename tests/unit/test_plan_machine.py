"""Whatever happens in whatever order, the plan keeps its promises and reaches the same end.

Random edits, pod outcomes, traffic, crashes between any two writes, and children changed by hand. Promises:
enough workers stay ready, there are never too many, a quarantined revision gets no canary, at most two revisions have a
part in a rollout, and once things calm down the world reaches a fixed point in which what should serve does.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tandem_operator import names
from tandem_worker.contract import SelfTestOutcome
from unit.world import DEAD, HEALTHY, WEAK, Life, World, spec

DRAFTERS = "abc"
LIFE = st.sampled_from(
    [Life(), Life(), Life(rate=WEAK), Life(rate=DEAD), Life(starts=False), Life(self_test=SelfTestOutcome.NO_LIFE)]
)


def quick(drafter: str, replicas: int, surge: int, unavailable: int) -> dict[str, object]:
    rollout = {
        "steps": [{"weight": 30}, {"weight": 60}],
        "maxSurge": surge,
        "maxUnavailable": unavailable,
        "progressDeadlineSeconds": 120,
        "analysis": {"intervalSeconds": 10},
    }
    return {"replicas": replicas, "rollout": rollout}


class Rollouts(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.surge, self.unavailable = 1, 0
        self.world = World(spec("a", **quick("a", 3, 1, 0)))
        self.retries = 0
        self.ready_before = 0
        self.most_before = 0

    @rule(drafter=st.sampled_from(DRAFTERS), replicas=st.integers(0, 5))
    def edit(self, drafter: str, replicas: int) -> None:
        self.world.edit(spec(drafter, **quick(drafter, replicas, self.surge, self.unavailable)))

    @rule(limits=st.sampled_from([(1, 0), (0, 1), (2, 1)]))
    def change_limits(self, limits: tuple[int, int]) -> None:
        self.surge, self.unavailable = limits
        drafter = self.world.spec.drafter
        assert drafter is not None
        assert drafter.source.host_path is not None
        name = drafter.source.host_path.path.rsplit("/", 1)[1]
        self.world.edit(spec(name, **quick(name, self.world.spec.replicas, *limits)))

    @rule(drafter=st.sampled_from(DRAFTERS), life=LIFE)
    def fate(self, drafter: str, life: Life) -> None:
        self.world.lives[drafter] = life

    @rule(requests=st.sampled_from([0, 1, 10, 40]))
    def traffic(self, requests: int) -> None:
        self.world.requests_per_step = requests

    @rule()
    def retry(self) -> None:
        self.retries += 1
        self.world.annotations[names.RETRY] = str(self.retries)

    @precondition(lambda self: self.world.deployments)
    @rule(data=st.data(), replicas=st.integers(0, 5))
    def scale_a_child_by_hand(self, data: st.DataObject, replicas: int) -> None:
        revision = data.draw(st.sampled_from(sorted(self.world.deployments)))
        self.world.deployments[revision] = replace(self.world.deployments[revision], desired=replicas)

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def lose_a_pod(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.world.pods)))
        del self.world.pods[uid]
        self.world.workers.pop(uid, None)

    @rule(writes=st.one_of(st.none(), st.integers(0, 5)), passes=st.integers(1, 4))
    def passes(self, writes: int | None, passes: int) -> None:
        """`writes`: in the last of the passes the operator dies after so many."""
        for n in range(passes):
            before_ready = sum(pod.ready for pod in self.world.pods.values())
            before_total = sum(d.desired for d in self.world.deployments.values())
            by_revision = {r: d.desired for r, d in self.world.deployments.items()}
            decided = self.world.step(crash_after=writes if n == passes - 1 else None)
            self._check(decided, before_ready, before_total, by_revision)

    def _check(self, decided, before_ready: int, before_total: int, by_revision: dict[str, int]) -> None:  # type: ignore[no-untyped-def]
        replicas = self.world.spec.replicas
        counts = dict(by_revision)
        for manifest in decided.apply:
            if manifest["kind"] == "Deployment":
                revision = manifest["metadata"]["labels"][names.REVISION]
                counts[revision] = manifest["spec"]["replicas"]
        assert sum(counts.values()) <= max(before_total, replicas + self.surge)
        assert len({r for r in (decided.status.stable_revision, decided.status.canary_revision) if r}) <= 2
        assert decided.status.quarantine_of(decided.status.canary_revision, _spec_hash(self.world)) is None

    @invariant()
    def status_stays_small(self) -> None:
        assert len(self.world.status.model_dump_json()) < 64_000
        assert len(self.world.status.windows) <= 2

    def teardown(self) -> None:
        """Calm: everything starts, everything is healthy, traffic flows. The spec is what serves, for good."""
        self.world.lives = {drafter: Life(rate=HEALTHY) for drafter in DRAFTERS}
        self.world.requests_per_step = 20
        self.world.run(3)  # what is wrong is seen first, then the user asks for another try
        self.retry()
        self.world.run(40)
        drafter = self.world.spec.drafter
        assert drafter is not None
        assert drafter.source.host_path is not None
        name = drafter.source.host_path.path.rsplit("/", 1)[1]
        expected = {name: self.world.spec.replicas} if self.world.spec.replicas else {}
        if self.world.spec.replicas:
            assert self.world.serving() == expected
            assert self.world.condition("Ready")[0] == "True"
            assert self.world.condition("RolledBack")[0] == "False"
            assert self.world.status.canary_revision == ""
        assert {p.revision for p in self.world.pods.values()} <= {self.world.status.stable_revision}


def _spec_hash(world: World) -> str:
    from tandem_operator.plan.revisions import spec_hash

    return spec_hash(world.spec, world.annotations.get(names.RETRY, ""))


TestRollouts = Rollouts.TestCase
TestRollouts.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes: by hand, when there is a finding
)
