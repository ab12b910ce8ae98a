"""Tandem on a real node: kubelet, containerd and kube-proxy, images that are built from the project's recipes, helm.

Every namespace enforces the restricted Pod Security standard. Nothing is pulled, and there is no way out of the
cluster's network.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.operator_kit import TINY_PAIR, Api, Operator, Story, provide, pvc
from cluster.support import Manifest, eventually
from localcluster import Cluster
from localcluster.kubelet.configs import ENVIRONMENT_CLASS
from tandem_operator import names
from tandem_operator.api import GROUP, PLURAL
from tools.helm import helm
from tools.scrape import Prometheus, scraped

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "tandem"
MODELS = "models"
LIMIT_SECONDS = 420  # a Python with torch takes a minute to start where others keep the cores busy
RELEASE = [
    "--set=image.tag=dev",
    "--set=worker.image.tag=dev",
    "--set=networkPolicy.enabled=true",
    f"--set=networkPolicy.workerNamespaces={{{MODELS}}}",
    "--wait",
    f"--timeout={LIMIT_SECONDS}s",
]


def release(cluster: Cluster, verb: str, *arguments: str) -> None:
    helm(verb, "tandem", *arguments, f"--namespace={Operator.namespace}", kubeconfig=cluster.kubeconfig)


def spec(drafter: str = "drafter", **fields: Any) -> Manifest:
    return {
        "target": pvc("pairs", "target"),
        "drafter": pvc("pairs", drafter),
        "pod": {"runtimeClassName": ENVIRONMENT_CLASS, "terminationGracePeriodSeconds": 10},
        "rollout": {"steps": [{"weight": 50}], "analysis": {"intervalSeconds": 1}},
        **fields,
    }


def begin(cluster: Cluster) -> Story:
    """Restricted namespaces, the node's environment as a runtime class, the tiny pair behind a claim."""
    operator = Operator(cluster, Api(cluster), cluster.layout.directory / "checkpoints")
    for name in (Operator.namespace, MODELS):
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        operator.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    handler = {"metadata": {"name": ENVIRONMENT_CLASS}, "handler": ENVIRONMENT_CLASS}
    operator.api.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", handler)
    story = Story(operator, MODELS)
    shutil.copytree(TINY_PAIR, operator.checkpoints / MODELS)
    provide(story, "pairs", operator.checkpoints / MODELS)
    return story


def test_tandem_lives_on_a_real_node(cluster: Cluster, tmp_path: Path) -> None:
    story = begin(cluster)
    release(cluster, "install", str(CHART), *RELEASE)
    assert_kernels_compile_in_the_image(story)
    with scraped(cluster, tmp_path) as prometheus:
        stable = a_good_pair_serves(story, prometheus)
        a_collapsing_canary_is_rolled_back(story, prometheus, stable)
    a_gpu_is_asked_for(story)
    an_upgrade_touches_no_worker(cluster, story)
    assert story.operator.denied() == []
    workers_outlive_the_release(cluster, story)
    assert_no_way_out()
    nothing_outlives_the_cluster(cluster)


def assert_kernels_compile_in_the_image(story: Story) -> None:
    """In a pod like a worker: nobody's user, a root file system that is read-only, a volume at /tmp."""
    script = Path(__file__).with_name("compile_kernel.py").read_text()
    container = {
        "name": "main",
        "image": "localhost/tandem-worker:dev",
        "command": ["/opt/tandem/bin/python", "-c", script],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {
        "metadata": {"name": "compile"},
        "spec": {
            "restartPolicy": "Never",
            "runtimeClassName": ENVIRONMENT_CLASS,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }
    story.api.request("POST", story.path("pods"), pod)

    def ended() -> str:
        phase: str = story.api.request("GET", story.path("pods", "compile"))["status"]["phase"]
        return phase if phase in ("Succeeded", "Failed") else ""

    phase = eventually(ended, LIMIT_SECONDS)
    said = story.kubectl("logs", "compile")
    assert phase == "Succeeded", said
    assert "bytes for 90" in said
    assert "cuda_utils" in said
    assert "uid 65532" in said


def a_good_pair_serves(story: Story, prometheus: Prometheus) -> str:
    """Validated by running it, rolled out, asked through its Service, scraped; -> its revision."""
    story.apply(spec(validation={"mode": "Probe"}, replicas=2))
    story.until_condition("Validated", "True", limit_seconds=LIMIT_SECONDS)
    stable = story.until_stable(limit_seconds=LIMIT_SECONDS)
    url = story.operator.cluster.service_url(MODELS, "pair", 80)
    body = {"model": "pair", "prompt": "the ", "max_tokens": 20, "temperature": 0}
    texts = set()
    for _ in range(6):  # kube-proxy takes a worker at random for each connection
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60, trust_env=False).raise_for_status().json()
        texts.add(answer["choices"][0]["text"])
    assert len(texts) == 1
    assert texts.pop().strip()
    with story.traffic() as users:
        story.until("acceptance is known", lambda s: s.status.acceptance, limit_seconds=LIMIT_SECONDS)
        eventually(lambda: users.answered >= 5, LIMIT_SECONDS)
        expr = f'sum by (revision) (rate(tandem_accepted_tokens_total{{revision="{stable}"}}[15s])) > 0'
        eventually(lambda: prometheus.instant(expr), LIMIT_SECONDS)
    eventually(lambda: scraped_by_job(prometheus) == {"tandem-operator": 1, "tandem-workers": 2}, LIMIT_SECONDS)
    return stable


def scraped_by_job(prometheus: Prometheus) -> dict[str, float]:
    return {series.labels["job"]: series.points[0][1] for series in prometheus.instant("sum by (job) (up)")}


def a_collapsing_canary_is_rolled_back(story: Story, prometheus: Prometheus, stable: str) -> None:
    """Its drafter fits on paper; the target rejects what it drafts."""
    story.apply(spec("drafter-foreign", validation={"mode": "Static"}, replicas=2))
    with story.traffic():
        told = story.until_condition("RolledBack", "True", limit_seconds=LIMIT_SECONDS)
    assert told.reason == "AcceptLengthBelowFloor"
    (quarantined,) = story.show().status.quarantined
    assert story.show().status.stable_revision == stable
    alone = "the stable revision runs alone"
    story.until(alone, lambda _: set(story.serving()) == {stable}, limit_seconds=LIMIT_SECONDS)
    assert prometheus.instant(f'max_over_time(tandem_drafts_total{{revision="{quarantined.revision}"}}[5m]) > 0')


def a_gpu_is_asked_for(story: Story) -> None:
    """The restricted standard lets through Job and worker that ask for a GPU; the worker says that there is none."""
    story.apply(spec(resources={"limits": {"nvidia.com/gpu": 1}}, validation={"mode": "Static"}), "gpu")
    failed = eventually(lambda: ends(story, "gpu"), LIMIT_SECONDS)[0]
    assert failed["exitCode"] != 0
    assert "torch sees no GPU" in failed["message"]
    story.delete("gpu")


def ends(story: Story, name: str) -> list[Manifest]:
    """How workers that asked for a GPU ended."""
    workers = [p for p in story.items("pods", name) if p["metadata"]["labels"][names.ROLE] == names.WORKER]
    assert all(p["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"} for p in workers)
    containers = [container for pod in workers for container in pod["status"].get("containerStatuses", [])]
    states = [state for each in containers for state in (each["state"], each.get("lastState", {}))]
    return [state["terminated"] for state in states if "terminated" in state]


def workers_of(story: Story) -> set[tuple[str, int]]:
    """Both, once nothing else is left of what ran beside them."""
    eventually(lambda: len(story.pods()) == len(story.ready_pods()) == 2, LIMIT_SECONDS)
    return {(pod.uid, pod.restarts) for pod in story.pods()}


def an_upgrade_touches_no_worker(cluster: Cluster, story: Story) -> None:
    before, operators = workers_of(story), {pod["metadata"]["uid"] for pod in story.operator.pods()}
    with story.traffic() as users:
        release(cluster, "upgrade", str(CHART), *RELEASE, "--set=podAnnotations.upgraded=yes")
        eventually(lambda: operators.isdisjoint(pod["metadata"]["uid"] for pod in story.operator.pods()), LIMIT_SECONDS)
        answered = users.answered
        eventually(lambda: users.answered > answered, LIMIT_SECONDS)
    assert workers_of(story) == before


def workers_outlive_the_release(cluster: Cluster, story: Story) -> None:
    before = workers_of(story)
    release(cluster, "uninstall", "--wait")
    eventually(lambda: not story.operator.pods(), LIMIT_SECONDS)
    with story.traffic() as users:
        eventually(lambda: users.answered >= 3, LIMIT_SECONDS)
    assert workers_of(story) == before
    crd = story.api.request("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{GROUP}")
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    story.delete()
    eventually(lambda: not story.pods(), LIMIT_SECONDS)


def assert_no_way_out() -> None:
    """This test is in the cluster's network, which has the pods' bridge and no route beyond."""
    routes = subprocess.run(["ip", "route"], check=True, capture_output=True, text=True).stdout
    assert "default" not in routes
    links = json.loads(subprocess.run(["ip", "-json", "link"], check=True, capture_output=True, text=True).stdout)
    assert {link["ifname"].rstrip("0123456789abcdef") for link in links} <= {"lo", "pods", "veth"}


def nothing_outlives_the_cluster(cluster: Cluster) -> None:
    """Also when its supervisor is killed: the kernel ends the rest."""
    assert processes_in(cluster.layout.directory)
    os.kill(int(cluster.layout.supervisor.read_text()), signal.SIGKILL)
    eventually(lambda: not processes_in(cluster.layout.directory), LIMIT_SECONDS)
    assert str(cluster.layout.directory) not in Path("/proc/self/mountinfo").read_text()
    cluster.stop()
    assert not cluster.layout.directory.exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"**/tandem-{cluster.name}"))


def processes_in(folder: Path) -> list[str]:
    """Those whose command or mounts name the cluster's folder: its components, and every container."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            texts = [(process / name).read_text(errors="replace") for name in ("cmdline", "mountinfo")]
        except OSError:  # it ended meanwhile
            continue
        if any(str(folder) in text for text in texts):
            found.append(process.name)
    return found
