"""The operator runs under its own service account, with the rights that it uses and no others."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import yaml

from cluster.operator_kit import TINY_PAIR, Operator, Story, simulated
from cluster.support import Manifest, eventually

pytestmark = pytest.mark.cluster

RIGHTS = TINY_PAIR.parents[1] / "deploy" / "rbac.yaml"


class Right(NamedTuple):
    group: str
    resource: str
    verb: str


def granted() -> set[Right]:
    roles = [doc for doc in yaml.safe_load_all(RIGHTS.read_text()) if doc["kind"] in ("ClusterRole", "Role")]
    return {
        Right(group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def rights_of(request: Manifest) -> set[Right]:
    """What the request needed. An apply that makes a new object needs `create` as well as `patch`."""
    about = request.get("objectRef")
    if not about:
        return set()  # /apis and the like, which everybody may read
    resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
    verbs = {request["verb"]} | ({"create"} if request.get("responseStatus", {}).get("code") == 201 else set())
    return {Right(about.get("apiGroup", ""), resource, verb) for verb in verbs}


def test_rights_that_are_granted_are_used_and_none_is_missed(story: Story) -> None:
    """One life that needs them all: installed, rolled out by an edited ConfigMap through a route, history trimmed."""
    story.install_gateway_api()
    story.route("front", backends={"pair": 1})
    routed = {"httpRoute": {"name": "front"}}
    story.kubectl("create", "configmap", "settings", "--from-literal=seed=1")
    seed = {"name": "SIM_SEED", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "seed"}}}
    story.apply(simulated(revisionHistoryLimit=0, pod={"env": [seed]}, traffic=routed))
    first = story.until_stable()
    with story.traffic():
        story.kubectl("patch", "configmap", "settings", "--patch", '{"data": {"seed": "2"}}')
        story.until("the edit is rolled out", lambda shown: shown.status.stable_revision != first)
        story.until_stable()
    eventually(lambda: [len(story.items(kind, "pair")) for kind in ("deployments", "controllerrevisions")] == [1, 1])
    used = set[Right]().union(*map(rights_of, story.operator.requests()))
    assert story.operator.denied() == []
    assert granted() - used == set(), "granted and never used"
    assert used - granted() == set(), "used by virtue of some other role"


def test_no_right_reaches_what_is_not_the_operators_business() -> None:
    assert [right for right in granted() if right.resource == "secrets" or "*" in right] == []
    changing = {"create", "update", "patch", "delete", "deletecollection"}
    on_objects = {right for right in granted() if right.group == "tandem.dev" and right.verb in changing}
    assert on_objects == {Right("tandem.dev", "speculativedeployments/status", "update")}


def test_the_operator_runs_as_the_account_of_the_manifest_and_tells_its_health(operator: Operator) -> None:
    (pod,) = operator.pods()
    assert pod["spec"]["serviceAccountName"] == "tandem-operator"
    assert operator.get("/healthz") == "ok"
    metrics = operator.get("/metrics")
    assert "tandem_operator_crd_matches 1.0" in metrics
    assert "tandem_operator_invalid_objects_total 0.0" in metrics


def test_an_object_shows_in_the_operators_metrics_while_it_lives(story: Story) -> None:
    story.apply(simulated())
    story.until_stable()
    mine = f'namespace="{story.namespace}"'

    def lines() -> list[str]:
        return [line for line in story.operator.get("/metrics").splitlines() if mine in line]

    assert any('status="True",type="Ready"' in line and line.endswith(" 1.0") for line in eventually(lines))
    story.delete()
    eventually(lambda: not lines())
