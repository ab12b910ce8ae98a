"""One life of an object in the model: inputs come one by one, each when all that the last one set off has ended.

Only then is it defined how things must end, whatever disturbs the operator on the way: an edit in mid-rollout finds a
slower operator at an earlier step, and rightly ends otherwise (a revision that was replaced before it began leaves no
record, one that had begun does). What may come at any moment is the business of `machine.py`. For the same reason
nothing in a life is decided by how long something took: there are users enough for a verdict at every look, or none,
and a disturbance is shorter than every deadline.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from model import promises
from model.cluster import KINDS, Cluster
from model.inputs import FATE_OF_C, MOST_INPUTS, Input, Times, Wishes, draw
from model.told import label, told
from tandem_operator.api import Spec
from tandem_operator.plan.observed import Manifest
from tandem_worker.contract import SelfTestOutcome, Verdict
from unit.world import DEAD, WEAK, Life

TIMES = Times(interval=10, deadline=120, timeout=60)
SECONDS, LONG_SECONDS = 11, 4000  # between passes: one interval; and past every deadline, pause and time-out
STILL_PASSES, MOST_PASSES = 4, 300

USERS = 40
FATES = {
    "healthy": Life(),
    "weak": Life(rate=WEAK),
    "dead": Life(rate=DEAD),
    "never ready": Life(starts=False),
    "no life": Life(self_test=SelfTestOutcome.NO_LIFE),
}


class Disturbance(NamedTuple):
    """Of one pass: the operator sees some kinds late, and may die after so many of its writes; or the clock was set.

    Not both: an operator that dies before it has moved the times in status along has a successor that can't know.
    """

    late: frozenset[str] = frozenset()
    crash_after: int | None = None
    hours: int = 0


class Recorded(Cluster):
    """It also keeps the children as they were last written."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.children: dict[tuple[str, str], Manifest] = {}

    def _apply(self, manifest: Manifest) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind != "Scale":
            self.children[kind, name] = manifest
        super()._apply(manifest)


class Lived:
    def __init__(self) -> None:
        self.wishes = Wishes(TIMES)
        self.cluster = Recorded(Spec.model_validate(self.wishes.spec()), requests_per_step=USERS)
        self.cluster.lives["c"] = FATES[FATE_OF_C]
        self.comes_to_rest()

    def takes(self, said: Input, disturbances: Iterable[Disturbance] = ()) -> None:
        """It happens, the operator is disturbed for so many passes, and in the end all is still."""
        if self.wishes.hear(said, self._revision(said.given.get("drafter", ""))):
            self.cluster.edit(Spec.model_validate(self.wishes.spec()))
            if self.wishes.annotations != self.cluster.annotations:
                self.cluster.annotations = dict(self.wishes.annotations)
                self.cluster.version += 1
        else:
            self._happens(said)
        for late, crash_after, hours in disturbances:
            self.cluster.set_clock(hours, while_it_runs=True)
            promises.kept(self.cluster.one_pass(SECONDS, late, crash_after))
        self.comes_to_rest()

    def comes_to_rest(self) -> None:
        """Nothing changes any more, not even when every deadline has passed."""
        for _ in range(MOST_PASSES // STILL_PASSES):
            self._is_still()
            before = self.cluster.gist()
            promises.kept(self.cluster.one_pass(LONG_SECONDS))
            self._is_still()
            if self.cluster.gist() == before:
                return
        raise AssertionError("no rest")

    def _is_still(self) -> None:
        promises.come_to_rest(self.cluster, SECONDS, STILL_PASSES, MOST_PASSES)

    def _revision(self, drafter: str) -> str:
        """The canary if it has this drafter, else the newest revision that has; empty: none."""
        cluster, canary = self.cluster, self.cluster.status.canary_revision
        known = [h.revision for h in sorted(cluster.history.values(), key=lambda h: h.number)]
        mine = [revision for revision in known if label(cluster.recipes[revision]).split(",")[0] == drafter]
        return canary if canary in mine else mine[-1] if mine else ""

    def _happens(self, said: Input) -> None:
        cluster, given = self.cluster, said.given
        revision = self._revision(given.get("drafter", ""))
        match said.what:
            case "fate":
                cluster.lives[given["drafter"]] = FATES[given["life"]]
            case "judge":
                cluster.verdicts[given["drafter"]] = Verdict(given["verdict"])
            case "traffic":
                cluster.requests_per_step = USERS if given["flows"] else 0
            case "scale a child" if revision in cluster.deployments:
                cluster.scale(revision, given["replicas"])
            case "delete a deployment" if revision in cluster.deployments:
                del cluster.deployments[revision]
                for uid in [uid for uid, pod in cluster.pods.items() if pod.revision == revision]:
                    cluster.remove_pod(uid)
            case "delete a record" if revision in cluster.history:
                del cluster.history[revision]
            case "delete a pod":
                if mine := [uid for uid, pod in cluster.pods.items() if pod.revision == revision]:
                    cluster.remove_pod(mine[0])
            case "delete the jobs":
                cluster.jobs.clear()
            case "wipe the status":
                cluster.wipe_status()
            case _:
                pass  # there is nothing that it could be done to

    def end(self) -> dict[str, Any]:
        """Children and status, without times, figures, sentences and what has another name in every life."""
        cluster, status = self.cluster, self.cluster.status
        deployments = {d.revision: (d.desired, d.ready) for d in cluster.deployments.values()}
        kept = {("Deployment", f"pair-{revision}") for revision in cluster.deployments}
        kept |= {("ControllerRevision", f"pair-{revision}") for revision in cluster.history}
        revisioned = ("Deployment", "ControllerRevision")
        progress = status.progress
        return {
            "children": {
                key: manifest for key, manifest in cluster.children.items() if key[0] not in revisioned or key in kept
            },
            "deployments": deployments,
            "records": sorted((h.number, h.revision, h.served) for h in cluster.history.values()),
            "pods": sorted((pod.revision, pod.ready, pod.retry, pod.failure) for pod in cluster.pods.values()),
            "speculating": sorted(
                (cluster.pods[uid].revision, worker.speculating) for uid, worker in cluster.workers.items()
            ),
            "stable": status.stable_revision,
            "canary": (status.canary_revision, status.weight, status.share),
            "progress": progress and (progress.step, progress.passed),
            "quarantined": sorted((q.revision, q.reason, q.spec, q.instead) for q in status.quarantined),
            "conditions": [(c.type, c.status, c.reason, c.observed_generation) for c in status.conditions],
            "answers": [(a.command, a.value, a.outcome) for a in status.answers],
            "validation": status.validation and status.validation.model_copy(update={"at": None}),
            "figures of": status.acceptance and status.acceptance.revision,
            "windows of": sorted(window.revision for window in status.windows),
            "replicas": (status.replicas, status.selector, status.observed_generation),
            "others": (status.url, status.collision_count),
        }

    def told(self) -> dict[str, Any]:
        cluster = self.cluster
        return told(
            cluster.status,
            [(h.number, h.revision, h.served) for h in cluster.history.values()],
            [(d.revision, d.desired, d.ready) for d in cluster.deployments.values()],
            [(cluster.pods[uid].revision, worker.speculating) for uid, worker in cluster.workers.items()],
            {revision: label(recipe) for revision, recipe in cluster.recipes.items()},
        )


# Most passes are cut short: only so does the operator often die at a write that matters, once or again and again.
_late = st.frozensets(st.sampled_from(KINDS), max_size=2)
_cut_short = st.builds(Disturbance, _late, st.integers(0, 9), st.just(0))
_clock_set = st.builds(Disturbance, st.just(frozenset()), st.none(), st.sampled_from([-2, 0, 2]))
disturbances = st.lists(st.one_of(_cut_short, _cut_short, _clock_set), max_size=8)


def ends_as_undisturbed(data: st.DataObject) -> int:
    """The same inputs twice, and after each the two are alike; how many there were."""
    disturbed, undisturbed = Lived(), Lived()
    inputs = data.draw(st.integers(1, MOST_INPUTS))
    for _ in range(inputs):
        said = draw(lambda options: data.draw(st.sampled_from(options)))
        undisturbed.takes(said)
        disturbed.takes(said, data.draw(disturbances))
        found, expected = disturbed.end(), undisturbed.end()
        assert {key: (found[key], expected[key]) for key in expected if found[key] != expected[key]} == {}
    return inputs
