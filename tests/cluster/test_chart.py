"""The chart's life on a cluster of its own: installed, upgraded in mid-rollout, uninstalled under objects that live.

The namespace of the operator and that of the workers enforce the restricted Pod Security standard throughout.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.operator_kit import Api, Operator, Refused, Story, provide, pvc, simulated
from cluster.support import Manifest, eventually
from localcluster import Cluster
from tandem_operator.api import GROUP, PLURAL
from tools.helm import helm

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "tandem"
MODELS, OTHERS = "models", "others"
CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{GROUP}"
# The Prometheus operator's kinds, as far as the API server must know them.
MONITORING = ("PodMonitor", "PrometheusRule")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster.start(name=f"chart-{os.getpid()}", restart_delay_seconds=0.5) as cluster:
        yield cluster


@pytest.fixture
def operator(cluster: Cluster) -> Operator:
    """Of a cluster where nothing is installed yet."""
    operator = Operator(cluster, Api(cluster), cluster.layout.directory / "checkpoints")
    for name in (Operator.namespace, MODELS, OTHERS):
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        operator.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    for kind in MONITORING:
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(crd_of(kind)))
    return operator


def crd_of(kind: str) -> Manifest:
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    plural, group = f"{kind.lower()}s", "monitoring.coreos.com"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": anything}],
        },
    }


def earlier_version(folder: Path) -> Path:
    """The chart as an earlier version might have been: its CRD does not know `spec.paused` yet."""
    chart = folder / "tandem"
    shutil.copytree(CHART, chart)  # the CRD's file comes along in the place of the link
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": "0.0.9", "appVersion": "0.0.9"}))
    crd = yaml.safe_load((chart / "crd.yaml").read_text())
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["paused"]
    (chart / "crd.yaml").write_text(yaml.safe_dump(crd))
    return chart


def release(cluster: Cluster, verb: str, *arguments: str) -> str:
    return helm(verb, "tandem", *arguments, f"--namespace={Operator.namespace}", kubeconfig=cluster.kubeconfig)


ALL_ON = [
    "--set=networkPolicy.enabled=true",
    f"--set=networkPolicy.workerNamespaces={{{MODELS}}}",
    "--set=metrics.podMonitor.enabled=true",
    "--set=metrics.rules.enabled=true",
    "--set=metrics.dashboards.enabled=true",
    "--wait",
    "--timeout=90s",
]


def workers_of(story: Story) -> set[tuple[str, int]]:
    return {(pod.uid, pod.restarts) for pod in story.pods()}


def spec(**fields: Any) -> Manifest:
    """Checkpoints from a claim: the namespace refuses hostPath."""
    return simulated(**fields) | {"target": pvc("models", "target"), "drafter": pvc("models", "drafter")}


def test_a_release_from_install_to_uninstall(cluster: Cluster, operator: Operator, tmp_path: Path) -> None:
    story = Story(operator, MODELS)

    # Installed, with everything switched on.
    old = earlier_version(tmp_path)
    assert "PrometheusRule" in release(cluster, "install", str(CHART), "--dry-run=server", *ALL_ON)
    without = "Workers and validation Jobs have no NetworkPolicy"
    assert without not in release(cluster, "install", str(CHART), "--dry-run=server", *ALL_ON)
    assert without in release(cluster, "install", str(CHART), "--dry-run=server", "--set=networkPolicy.enabled=true")
    said = release(cluster, "install", str(old), *ALL_ON)
    assert "serves all namespaces" in said
    policies = operator.api.request("GET", "/apis/networking.k8s.io/v1/networkpolicies")["items"]
    assert {p["metadata"]["name"] for p in policies} == {"tandem-operator", "tandem-workers", "tandem-validation"}

    # A canary waits for evidence while the chart is upgraded: its CRD gains a field, and its worker image is another.
    story.checkpoint("target", like="target")
    provide(story, "models", story.checkpoint("drafter").parent)
    story.apply(spec())
    stable = story.until_stable()
    with pytest.raises(Refused, match=r"paused: field not declared in schema|unknown field"):
        story.apply(spec(paused=True))
    story.apply(spec(sim={"seed": 1, "stall_requests": True}))
    story.until_condition("CanaryHealthy", "Unknown", "TooFewDrafts")
    before, operators = workers_of(story), {pod["metadata"]["uid"] for pod in operator.pods()}
    release(cluster, "upgrade", str(CHART), *ALL_ON, "--set=worker.image.tag=next")
    eventually(lambda: operators.isdisjoint(pod["metadata"]["uid"] for pod in operator.pods()))
    story.apply(spec(sim={"seed": 1, "stall_requests": True}, paused=False))  # the field is known now
    canary = story.show().status.canary_revision
    assert workers_of(story) == before, "no worker was touched"
    assert story.show().status.stable_revision == stable
    (waiting,) = story.ready_pods(revision=canary)
    waiting.tell(stall_requests=False)
    with story.traffic():
        assert story.until_stable() == canary

    # Whoever may edit Deployments may edit these; whoever may view, not.
    for role in ("view", "edit"):
        binding = ("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}er")
        story.kubectl(*binding)
    eventually(lambda: can(story, "editer", "patch", PLURAL))
    assert can(story, "editer", "update", f"{PLURAL}/scale")
    assert not can(story, "editer", "update", f"{PLURAL}/status")
    assert can(story, "viewer", "list", PLURAL)
    assert not can(story, "viewer", "patch", PLURAL)

    # Uninstalled under a living object: it goes on serving, and can be deleted.
    before = workers_of(story)
    assert operator.denied() == []
    release(cluster, "uninstall", "--wait")
    eventually(lambda: not operator.pods())
    late = len(operator.denied())  # its rights go while it still ends
    assert operator.api.request("GET", CRD)["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    with story.traffic() as users:
        eventually(lambda: users.answered >= 3)
    assert workers_of(story) == before
    story.apply(spec(), "another")
    story.delete("another")

    # Installed again for one namespace: it takes over what it finds there, and has no business elsewhere.
    one = ["--set=rbac.scope=namespaces", f"--set=rbac.namespaces={{{MODELS}}}", "--wait", "--timeout=90s"]
    release(cluster, "install", str(CHART), *one)
    Story(operator, OTHERS).apply(simulated())
    story.apply(spec(sim={"seed": 2}))
    with story.traffic():
        assert story.until_stable() != canary
    assert Story(operator, OTHERS).show().status.conditions == []
    assert operator.denied()[late:] == []

    # The namespace goes while nobody is there to clean up.
    release(cluster, "uninstall", "--wait")
    for name in (MODELS, OTHERS):
        cluster.kubectl("delete", "namespace", name, "--timeout=60s")


def can(story: Story, user: str, verb: str, resource: str) -> bool:
    review = {
        "user": user,
        "resourceAttributes": {
            "namespace": story.namespace,
            "verb": verb,
            "group": GROUP,
            "resource": resource.partition("/")[0],
            "subresource": resource.partition("/")[2],
        },
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(story.api.request("POST", path, {"spec": review})["status"]["allowed"])
