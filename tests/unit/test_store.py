"""What the operator knows of the cluster: the newest version of everything, whoever told it and in whatever order."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tandem_operator import kube
from tandem_operator.handlers import kopf_settings
from tandem_operator.queue import Key
from tandem_operator.store import CHILDREN, KINDS, OBJECT, Store

POD, DEPLOYMENT = CHILDREN["Pod"], CHILDREN["Deployment"]
PAIR = Key("ns", "pair")


def body(name: str = "pair-0", version: int = 1, uid: str = "uid", owner: str = "pair") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version), "managedFields": [{}]}
    return {"metadata": metadata | {"labels": {"tandem.dev/name": owner}}, "spec": {"replicas": version}}


def replicas(store: Store) -> list[int]:
    return [found.spec.replicas for found in store.children(kube.DeploymentObject, PAIR)]


def test_a_child_is_found_by_its_owner_and_is_news_once() -> None:
    store = Store()
    assert store.put(POD, body()) == PAIR
    assert store.put(POD, body()) is None, "the watch echoes what the list told"
    assert [pod.metadata.name for pod in store.children(kube.PodObject, PAIR)] == ["pair-0"]
    assert store.children(kube.PodObject, Key("ns", "other")) == []
    assert store.children(kube.PodObject, Key("other", "pair")) == []


@given(st.permutations([1, 2, 3, 9, 10]))
def test_the_newest_version_stays_whatever_the_order(versions: list[int]) -> None:
    store = Store()
    for version in versions:
        store.put(DEPLOYMENT, body(version=version))
    assert replicas(store) == [10]


def test_an_echo_of_a_write_of_ours_is_no_news_and_what_others_write_is() -> None:
    store = Store()
    store.put(OBJECT, body("pair", 5))  # the answer to our write
    assert store.put(OBJECT, body("pair", 5)) is None
    assert store.put(OBJECT, body("pair", 6)) == PAIR


def test_a_deletion_is_of_the_one_that_was_deleted() -> None:
    store = Store()
    store.put(POD, body(uid="first", version=1))
    store.put(POD, body(uid="second", version=3))  # made anew under its name
    assert store.drop(POD, body(uid="first", version=2)) is None
    assert len(store.children(kube.PodObject, PAIR)) == 1
    assert store.drop(POD, body(uid="second", version=4)) == PAIR
    assert store.children(kube.PodObject, PAIR) == []


def test_a_list_tells_what_is_gone_but_not_of_what_came_after_it_was_taken() -> None:
    store = Store()
    store.put(POD, body("pair-0", 1))
    store.put(POD, body("pair-1", 2))
    store.put(POD, body("pair-2", 9))
    assert store.without(POD, {("ns", "pair-1")}, version=5, namespaces=()) == {PAIR}
    assert {pod.metadata.name for pod in store.children(kube.PodObject, PAIR)} == {"pair-1", "pair-2"}
    assert store.without(POD, set(), version=9, namespaces=["other"]) == set(), "another namespace was listed"


def test_an_object_is_kept_as_it_came_without_the_bookkeeping_of_the_api_server() -> None:
    store = Store()
    store.put(OBJECT, body("pair"))
    kept = store.json_of(PAIR)
    assert kept is not None
    assert b"managedFields" not in kept
    assert b'"replicas": 1' in kept
    assert store.json_of(Key("ns", "none")) is None


def test_what_is_kept_of_a_child_is_what_is_read_of_it() -> None:
    store = Store()
    told = body() | {"status": {"podIP": "10.0.0.1", "containerStatuses": [{"imageID": "sha256:1", "ready": True}]}}
    store.put(POD, told)
    (pod,) = store.children(kube.PodObject, PAIR)
    assert (pod.status.pod_ip, pod.status.container_statuses[0].image_id) == ("10.0.0.1", "sha256:1")
    assert pod == kube.PodObject.model_validate(told)
    assert store.meta("Pod", "ns", "pair-0") == pod.metadata


def test_only_children_of_ours_are_watched_and_every_object() -> None:
    """Else each pod of a cluster would be an event to look at."""
    watched = kopf_settings().watching.label_selectors
    selected = {kind.name: watched.get((kind.group, kind.version, kind.plural)) for kind in KINDS}
    assert selected.pop("SpeculativeDeployment") is None
    assert set(selected.values()) == {"app.kubernetes.io/managed-by=tandem,tandem.dev/name"}
