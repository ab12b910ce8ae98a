"""Whatever happens in whatever order: the rules by which things happen, and what must hold in the end.

Every pass must keep the promises of `promises.py`. When things calm down (nothing new happens, whatever state things
are in) the world reaches a fixed point within a bounded number of passes. When, on top of that, everything is well and
the user asks for another try, what serves is what the spec says.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from model import promises
from model.cluster import KINDS, OTHER_FILES, Timed, drafter_of
from tandem_operator import names
from tandem_operator.api import GROUP, Spec
from tandem_worker.contract import SelfTestOutcome, Verdict
from unit.world import DEAD, FILES, HEALTHY, WEAK, Life, spec

DRAFTERS = "abc"
LIVES = (Life(), Life(), Life(rate=WEAK), Life(rate=DEAD), Life(starts=False), Life(self_test=SelfTestOutcome.NO_LIFE))
VERDICTS = (Verdict.FITS, Verdict.FITS, Verdict.FITS_WITH_WARNINGS, Verdict.DOES_NOT_FIT, Verdict.COULD_NOT_CHECK, None)
SECONDS = (1, 11, 11, 11, 130)  # between passes: before an interval has passed, after it, after the deadline
CALM_SECONDS, CALM_PASSES = 130, 40

ANALYSIS = {"intervalSeconds": 10}

drafters = st.sampled_from(DRAFTERS)


class Rollouts(RuleBasedStateMachine):
    steps = 0  # of all examples of this process: what was done is told

    def __init__(self) -> None:
        super().__init__()
        self.rollout: dict[str, object] = {
            "steps": [{"weight": 30}, {"weight": 60}],
            "maxSurge": 1,
            "maxUnavailable": 0,
            "progressDeadlineSeconds": 120,
            "analysis": ANALYSIS,
        }
        self.fields: dict[str, object] = {"replicas": 3}
        self.retries = 0
        self.cluster = Timed(self._spec("a"))

    def _spec(self, drafter: str) -> Spec:
        return spec(drafter, **self.fields, rollout=self.rollout)

    def _edit(self, drafter: str = "") -> None:
        self.cluster.edit(self._spec(drafter or drafter_of(self.cluster.spec)))

    # --- what the user does ---

    @rule(drafter=drafters)
    def name_another_drafter(self, drafter: str) -> None:
        self._edit(drafter)

    @rule(replicas=st.integers(0, 5))
    def scale(self, replicas: int) -> None:
        self.fields["replicas"] = replicas
        self._edit()

    @rule(limits=st.sampled_from([(1, 0), (0, 1), (2, 1)]))
    def change_limits(self, limits: tuple[int, int]) -> None:
        self.rollout["maxSurge"], self.rollout["maxUnavailable"] = limits
        self._edit()

    @rule(weights=st.sampled_from([(), (50,), (30, 60)]), pause=st.sampled_from([None, None, {}, {"seconds": 60}]))
    def change_steps(self, weights: tuple[int, ...], pause: dict[str, int] | None) -> None:
        self.rollout["steps"] = [{"weight": weight, "pause": pause} for weight in weights]
        self._edit()

    @rule(
        delay=st.sampled_from([0, 30]),
        timeout=st.sampled_from([60, 3600]),
        end=st.sampled_from(["Rollback", "Hold"]),
        dry=st.booleans(),
    )
    def change_analysis(self, delay: int, timeout: int, end: str, dry: bool) -> None:
        self.rollout["analysis"] = {
            **ANALYSIS,
            "initialDelaySeconds": delay,
            "timeoutSeconds": timeout,
            "onInconclusive": end,
            "dryRun": dry,
        }
        self._edit()

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.fields["paused"] = paused
        self._edit()

    @rule(
        on_collapse=st.sampled_from(["Rollback", "DisableSpeculation", "Alert"]),
        speculates=st.booleans(),
        enforcement=st.sampled_from(["Enforce", "Warn"]),
        on_invalid=st.sampled_from(["Block", "ServeTargetOnly"]),
    )
    def change_policy(self, on_collapse: str, speculates: bool, enforcement: str, on_invalid: str) -> None:
        self.fields["guard"] = {"onCollapse": on_collapse}
        self.fields["speculation"] = {"enabled": speculates}
        self.fields["validation"] = {"enforcement": enforcement, "onInvalid": on_invalid}
        self._edit()

    @rule()
    def retry(self) -> None:
        self.retries += 1
        self.cluster.annotate(names.RETRY, str(self.retries))

    @precondition(lambda self: self.cluster.history)
    @rule(data=st.data(), command=st.sampled_from(["promote", "abort", "rollback"]), full=st.booleans())
    def command(self, data: st.DataObject, command: str, full: bool) -> None:
        """Of the canary or, which is mostly refused, of any other revision."""
        status = self.cluster.status
        known = sorted({h.revision for h in self.cluster.history.values()})
        revision = status.canary_revision or data.draw(st.sampled_from(known))
        words = f"{revision} full" if command == "promote" and full else revision
        self.retries += 1
        self.cluster.annotate(f"{GROUP}/{command}", f"{words} # {self.retries}")

    @rule(drafter=drafters, life=st.sampled_from(LIVES))
    def fate(self, drafter: str, life: Life) -> None:
        self.cluster.lives[drafter] = life

    @rule(drafter=drafters, verdict=st.sampled_from(VERDICTS))
    def judge(self, drafter: str, verdict: Verdict | None) -> None:
        self.cluster.verdicts[drafter] = verdict

    @rule(changed=st.booleans())
    def change_files(self, changed: bool) -> None:
        self.cluster.files = OTHER_FILES if changed else FILES

    @rule(requests=st.sampled_from([0, 1, 10, 40]))
    def traffic(self, requests: int) -> None:
        self.cluster.requests_per_step = requests

    # --- what the cluster and other hands do ---

    @precondition(lambda self: self.cluster.deployments)
    @rule(data=st.data(), replicas=st.integers(0, 5))
    def scale_a_child_by_hand(self, data: st.DataObject, replicas: int) -> None:
        self.cluster.scale(data.draw(st.sampled_from(sorted(self.cluster.deployments))), replicas)

    @precondition(lambda self: self.cluster.deployments)
    @rule(data=st.data())
    def delete_a_deployment(self, data: st.DataObject) -> None:
        revision = data.draw(st.sampled_from(sorted(self.cluster.deployments)))
        del self.cluster.deployments[revision]
        for uid in [uid for uid, pod in self.cluster.pods.items() if pod.revision == revision]:
            self.cluster.remove_pod(uid)

    @precondition(lambda self: self.cluster.history)
    @rule(data=st.data())
    def delete_a_record(self, data: st.DataObject) -> None:
        del self.cluster.history[data.draw(st.sampled_from(sorted(self.cluster.history)))]

    @precondition(lambda self: self.cluster.jobs)
    @rule()
    def delete_the_jobs(self) -> None:
        self.cluster.jobs.clear()

    @rule()
    def wipe_status(self) -> None:
        self.cluster.wipe_status()

    @precondition(lambda self: self.cluster.pods)
    @rule(data=st.data(), how=st.sampled_from(["gone", "restarted", "deaf", "heard"]))
    def a_pod_is(self, data: st.DataObject, how: str) -> None:
        uid = data.draw(st.sampled_from(sorted(self.cluster.pods)))
        if how == "gone":
            self.cluster.remove_pod(uid)
        elif how == "restarted" and uid in self.cluster.workers:
            self.cluster.restart_container(uid)
        elif how == "deaf":
            self.cluster.deaf.add(uid)
        elif how == "heard":
            self.cluster.deaf.discard(uid)

    # --- what the operator does ---

    @rule(
        seconds=st.sampled_from(SECONDS),
        passes=st.integers(1, 3),
        writes=st.one_of(st.none(), st.integers(0, 8)),
        late=st.sets(st.sampled_from(KINDS)),
    )
    def passes(self, seconds: int, passes: int, writes: int | None, late: set[str]) -> None:
        """`writes`: in the last pass the operator dies after so many. `late`: kinds that it sees as they were."""
        for n in range(passes):
            last = n == passes - 1
            promises.kept(self.cluster.one_pass(seconds, late, writes if last else None))

    @rule(seconds=st.sampled_from(SECONDS), passes=st.integers(3, 10))
    def quiet(self, seconds: int, passes: int) -> None:
        """Nothing else happens for a while."""
        for _ in range(passes):
            promises.kept(self.cluster.one_pass(seconds))

    @rule(hours=st.sampled_from([-2, 2]), while_it_runs=st.booleans())
    def the_clock_is_set(self, hours: int, while_it_runs: bool) -> None:
        self.cluster.set_clock(hours, while_it_runs)

    # --- what holds ---

    @invariant()
    def status_stays_small(self) -> None:
        Rollouts.steps += 1
        assert len(self.cluster.status.windows) <= 2
        assert len(self.cluster.status.measurements) <= 10

    def teardown(self) -> None:
        self._comes_to_rest()
        if self.cluster.spec.paused:  # what a pause kept from being looked at is seen before another try is asked for
            self.pause(paused=False)
            self._comes_to_rest()
        self.cluster.lives = {drafter: Life(rate=HEALTHY) for drafter in DRAFTERS}
        self.cluster.verdicts, self.cluster.deaf = {}, set()
        self.cluster.requests_per_step = 40
        self.rollout |= {"steps": [{"weight": 30}, {"weight": 60}], "analysis": ANALYSIS}
        self.pause(paused=False)
        self.retry()
        self._comes_to_rest()
        self._the_spec_serves()

    def _comes_to_rest(self) -> None:
        """A fixed point: several passes in a row, over which every interval and deadline passes, change nothing."""
        promises.come_to_rest(self.cluster, CALM_SECONDS, still=4, most=CALM_PASSES)
        self._workers_do_as_told()

    def _workers_do_as_told(self) -> None:
        """Those of a quarantined revision run the target alone, all others draft if their drafter is alive. Where
        record and status are both lost nobody knows why a worker was switched off, and it stays so (soak, seed 4)."""
        cluster = self.cluster
        for uid, worker in cluster.workers.items():
            revision = cluster.pods[uid].revision
            if uid in cluster.deaf or worker.status is None or not cluster.recipes[revision].speculates:
                continue
            allowed = not cluster.quarantined(revision)
            known = revision in (*cluster.history, cluster.status.stable_revision, cluster.status.canary_revision)
            if allowed and not known:
                continue
            assert worker.status.speculation_enabled == allowed, f"{uid} of {revision} drafts: {not allowed}"

    def _the_spec_serves(self) -> None:
        cluster, replicas = self.cluster, self.cluster.spec.replicas
        drafter = drafter_of(cluster.spec)
        assert cluster.serving() == ({drafter: replicas} if replicas else {})
        assert cluster.condition("Ready")[0] == "True"
        assert cluster.condition("RolledBack")[0] == "False"
        assert {pod.revision for pod in cluster.pods.values()} <= {cluster.status.stable_revision}
        if replicas:
            assert cluster.status.canary_revision == ""
            assert cluster.speculating() == {cluster.spec.speculates}
