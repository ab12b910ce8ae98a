"""The local cluster keeps the promises of a kubelet, a container runtime and kube-proxy that Tandem relies on."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.support import Manifest, Namespace, eventually, pod

pytestmark = pytest.mark.cluster

SLEEP = ("sleep", "1000")


def config_map(name: str, **data: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def status(namespace: Namespace, name: str) -> Manifest:
    found: Manifest = namespace.get("pod", name)["status"]
    return found


def container(namespace: Namespace, name: str) -> Manifest:
    found: Manifest = status(namespace, name)["containerStatuses"][0]
    return found


def is_ready(namespace: Namespace, name: str) -> bool:
    conditions = status(namespace, name)["conditions"]
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        text: str = answer.read().decode()
    return text


# --- what a process is told ------------------------------------------------------------------------------------------


def test_a_pod_is_told_its_configuration(namespace: Namespace) -> None:
    variables: list[dict[str, Any]] = [
        {"name": "WHERE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "GREETING", "value": "from $(WHERE), not $(UNKNOWN) nor $$(WHERE)"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "key", "key": "token"}}},
        {"name": "TIER", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['tier']"}}},
        {"name": "PAGE", "value": "/etc/settings/page"},
    ]
    mounts = ("settings", "key", "downward")
    labels_file = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
    namespace.apply(
        config_map("settings", MODE="probe", page="in a file"),
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"token": "s3cret"}},
        pod(
            "told",
            *("sh", "-c", 'echo "$GREETING, $MODE, $TOKEN, $TIER, $0"; cat $PAGE /etc/key/token /etc/downward/labels'),
            args=["run on $(WHERE)"],
            labels={"tier": "gold"},
            restartPolicy="Never",
            env=variables,
            envFrom=[{"configMapRef": {"name": "settings"}}],
            volumeMounts=[{"name": name, "mountPath": f"/etc/{name}"} for name in mounts],
            volumes=[
                {"name": "settings", "configMap": {"name": "settings"}},
                {"name": "key", "secret": {"secretName": "key"}},
                {"name": "downward", "downwardAPI": {"items": [labels_file]}},
            ],
        ),
    )
    namespace.wait("pod/told", "jsonpath={.status.phase}=Succeeded")
    first, files = namespace.logs("told").splitlines()
    assert first == "from local, not $(UNKNOWN) nor $(WHERE), probe, s3cret, gold, run on local"
    assert files == 'in a files3crettier="gold"'


def test_a_changed_config_map_reaches_the_mounted_file(namespace: Namespace) -> None:
    namespace.apply(
        config_map("key", pem="old"),
        pod(
            "reader",
            *("sh", "-c", "while sleep 0.1; do cat /etc/key/pem; echo; done"),
            volumeMounts=[{"name": "key", "mountPath": "/etc/key"}],
            volumes=[{"name": "key", "configMap": {"name": "key"}}],
        ),
    )
    eventually(lambda: "old" in namespace.logs("reader", "--tail=1"))
    namespace.apply(config_map("key", pem="new"))
    eventually(lambda: "new" in namespace.logs("reader", "--tail=1"))
    assert set(namespace.logs("reader").split()) == {"old", "new"}  # never a half-written file


def test_a_service_account_may_do_what_its_role_says_and_no_more(namespace: Namespace) -> None:
    kubectl = namespace.cluster.layout.binaries / "kubectl"
    role = ["--serviceaccount=" + f"{namespace.name}:default", "--role=reader"]
    namespace.kubectl("create", "role", "reader", "--verb=get,list", "--resource=configmaps")
    namespace.kubectl("create", "rolebinding", "reader", *role)
    script = f"{kubectl} get configmaps -o name; {kubectl} get secrets"
    namespace.apply(pod("client", "sh", "-c", script, restartPolicy="Never"))
    namespace.wait("pod/client", "jsonpath={.status.phase}=Failed")
    said = namespace.logs("client")
    assert "configmap/kube-root-ca.crt" in said
    assert f"system:serviceaccount:{namespace.name}:default" in said
    assert 'cannot list resource "secrets"' in said


def test_volumes_outlive_containers_as_their_kind_says(namespace: Namespace, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("weights")
    claim_spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    volume = f"drafters-{namespace.name}"
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": str(tmp_path)},
                "claimRef": {"namespace": namespace.name, "name": "drafters"},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "drafters"},
            "spec": {**claim_spec, "storageClassName": "", "volumeName": volume},
        },
        pod(
            "chain",
            *("sh", "-c", "cat /scratch/note /models/drafters/config.json; echo done > /direct/mark"),
            initContainers=[
                {
                    "name": "first",
                    "image": "shell",
                    "command": ["sh", "-c", "echo before > /scratch/note"],
                    "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                }
            ],
            restartPolicy="Never",
            volumeMounts=[
                {"name": "scratch", "mountPath": "/scratch"},
                {"name": "drafters", "mountPath": "/models/drafters"},
                {"name": "direct", "mountPath": "/direct"},
            ],
            volumes=[
                {"name": "scratch", "emptyDir": {}},
                {"name": "drafters", "persistentVolumeClaim": {"claimName": "drafters"}},
                {"name": "direct", "hostPath": {"path": str(tmp_path)}},
            ],
        ),
    )
    namespace.wait("pod/chain", "jsonpath={.status.phase}=Succeeded")
    assert namespace.logs("chain") == "before\nweights"
    assert (tmp_path / "mark").read_text() == "done\n"
    namespace.kubectl("delete", "persistentvolume", volume, "--wait=false")


# --- how it ends -----------------------------------------------------------------------------------------------------


def test_a_job_is_told_exit_code_and_termination_message(namespace: Namespace) -> None:
    script = 'echo "working"; echo "does not fit" > /dev/termination-log; exit 1'
    template = pod("unused", "sh", "-c", script, restartPolicy="Never")["spec"]
    verdict = {"containerName": "main", "operator": "In", "values": [1]}
    spec = {
        "backoffLimit": 3,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": verdict}]},
        "template": {"spec": template},
    }
    namespace.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "validate"}, "spec": spec})
    namespace.wait("job/validate", "condition=Failed")
    (ran,) = namespace.list("pods")
    ended = ran["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ran["status"]["phase"] == "Failed"
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (1, "Error", "does not fit\n")


def test_the_log_stands_in_for_a_missing_termination_message(namespace: Namespace) -> None:
    script = ("sh", "-c", "echo the reason; exit 3")
    fallback: dict[str, Any] = {"terminationMessagePolicy": "FallbackToLogsOnError", "restartPolicy": "Never"}
    namespace.apply(
        pod("from-log", *script, **fallback),
        pod("silent", *script, restartPolicy="Never"),
        pod("killed", "sh", "-c", "kill -KILL $$", restartPolicy="Never"),
        pod("no-such-program", "/no/such/program", restartPolicy="Never"),
    )

    def ended(name: str) -> Manifest:
        namespace.wait(f"pod/{name}", "jsonpath={.status.phase}=Failed")
        terminated: Manifest = container(namespace, name)["state"]["terminated"]
        return terminated

    assert (ended("from-log")["exitCode"], ended("from-log")["message"]) == (3, "the reason\n")
    assert "message" not in ended("silent")
    assert (ended("killed")["exitCode"], ended("killed")["reason"]) == (137, "Error")  # no memory was short
    assert (ended("no-such-program")["exitCode"], ended("no-such-program")["reason"]) == (128, "StartError")


def test_a_crashing_container_is_restarted_with_back_off(namespace: Namespace) -> None:
    namespace.apply(pod("crash", "sh", "-c", "echo attempt; exit 7"))

    def backing_off() -> bool:
        shown = status(namespace, "crash")  # all of it at one moment: in the next the container runs again
        (found,) = shown["containerStatuses"]
        waits = found["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff"
        ready = {condition["type"]: condition["status"] for condition in shown["conditions"]}["Ready"]
        ended = found["restartCount"] >= 2 and found["lastState"]["terminated"]["exitCode"] == 7
        return bool(waits and ended and (shown["phase"], ready) == ("Running", "False"))

    eventually(backing_off)
    assert namespace.logs("crash", "--previous") == "attempt\n"


def command_lines() -> Iterator[bytes]:
    """Of all processes of this machine."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            yield file.read_bytes()


def test_deletion_lets_a_process_finish_within_its_grace_period(namespace: Namespace, tmp_path: Path) -> None:
    polite = f"trap 'sleep 0.3; echo drained > {tmp_path}/polite; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    deaf = f"trap '' TERM; (trap '' TERM; exec tail -f /dev/null {tmp_path}/deaf >/dev/null 2>&1) & echo up; wait; wait"
    hook = {"preStop": {"exec": {"command": ["touch", f"{tmp_path}/asked"]}}}
    namespace.apply(
        pod("polite", "sh", "-c", polite, terminationGracePeriodSeconds=20, lifecycle=hook),
        pod("deaf", "sh", "-c", deaf, terminationGracePeriodSeconds=1),
        pod("forced", "sh", "-c", deaf, terminationGracePeriodSeconds=600),
    )
    names = ("polite", "deaf", "forced")
    eventually(lambda: {namespace.logs(name) for name in names} == {"up\n"})
    folders = [namespace.cluster.layout.pods / namespace.get("pod", name)["metadata"]["uid"] for name in names]
    namespace.kubectl("delete", "pod", "forced", "--force", "--grace-period=0")
    namespace.kubectl("delete", "pod", "polite", "deaf", "--timeout=15s")
    assert (tmp_path / "asked").exists()
    assert (tmp_path / "polite").read_text() == "drained\n"
    eventually(lambda: not any(folder.exists() for folder in folders))
    # The grandchildren were killed with their pods.
    eventually(lambda: not any(str(tmp_path / "deaf").encode() in told for told in command_lines()))


# --- probes ----------------------------------------------------------------------------------------------------------


def test_readiness_follows_the_probe_both_ways(namespace: Namespace, tmp_path: Path) -> None:
    flag = tmp_path / "ready"
    probe = {"exec": {"command": ["test", "-e", str(flag)]}, "periodSeconds": 1, "failureThreshold": 1}
    namespace.apply(pod("probed", *SLEEP, readinessProbe=probe))
    namespace.wait("pod/probed", "jsonpath={.status.phase}=Running")
    assert not is_ready(namespace, "probed")
    flag.touch()
    namespace.wait("pod/probed", "condition=Ready")
    flag.unlink()
    namespace.wait("pod/probed", "condition=Ready=false")
    assert container(namespace, "probed")["restartCount"] == 0


def test_liveness_restarts_and_waits_for_the_startup_probe(namespace: Namespace, tmp_path: Path) -> None:
    flag = tmp_path / "started"
    never = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1}
    startup = {"exec": {"command": ["test", "-e", str(flag)]}, "periodSeconds": 1, "failureThreshold": 60}
    namespace.apply(
        pod("slow", *SLEEP, startupProbe=startup, livenessProbe=never), pod("dead", *SLEEP, livenessProbe=never)
    )
    eventually(lambda: container(namespace, "dead")["restartCount"] >= 1)
    assert container(namespace, "slow")["restartCount"] == 0
    assert container(namespace, "slow")["started"] is False
    flag.touch()
    eventually(lambda: container(namespace, "slow")["restartCount"] >= 1)


# --- scheduling and images -------------------------------------------------------------------------------------------


def test_gpus_are_counted_and_the_pod_that_does_not_fit_waits(namespace: Namespace) -> None:
    def wants(name: str, gpus: int) -> Manifest:
        return pod(name, *SLEEP, resources={"limits": {"nvidia.com/gpu": str(gpus)}})

    namespace.apply(wants("sixteen", 16))
    namespace.wait("pod/sixteen", "condition=Ready")
    namespace.apply(wants("one-more", 1))
    namespace.wait("pod/one-more", "condition=PodScheduled=false")
    assert "Insufficient nvidia.com/gpu" in status(namespace, "one-more")["conditions"][0]["message"]
    namespace.kubectl("delete", "pod", "sixteen")
    namespace.wait("pod/one-more", "condition=Ready")
    namespace.kubectl("delete", "pod", "one-more")


def test_an_image_that_nobody_knows_cannot_be_pulled(namespace: Namespace) -> None:
    namespace.apply(pod("lost", image="ghcr.io/someone/no-such-image:v1"))
    eventually(lambda: container(namespace, "lost")["state"]["waiting"]["reason"] == "ImagePullBackOff")
    assert status(namespace, "lost")["phase"] == "Pending"
    assert "ghcr.io/someone/no-such-image:v1" in container(namespace, "lost")["state"]["waiting"]["message"]


def test_a_missing_config_map_is_named_and_waited_for(namespace: Namespace) -> None:
    namespace.apply(pod("early", *SLEEP, envFrom=[{"configMapRef": {"name": "late"}}]))
    eventually(lambda: container(namespace, "early")["state"]["waiting"]["reason"] == "CreateContainerConfigError")
    assert container(namespace, "early")["state"]["waiting"]["message"] == 'configmap "late" not found'
    namespace.apply(config_map("late", x="y"))
    namespace.wait("pod/early", "condition=Ready")


# --- logs and Services -----------------------------------------------------------------------------------------------


def test_kubectl_logs_follows_to_the_end(namespace: Namespace) -> None:
    namespace.apply(pod("counter", "sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.4; done", restartPolicy="Never"))
    namespace.wait("pod/counter", "jsonpath={.status.phase}=Running")
    assert namespace.logs("counter", "--follow") == "1\n2\n3\n"
    assert namespace.logs("counter", "--tail=2") == "2\n3\n"


def test_a_service_sends_connections_to_ready_pods_only(namespace: Namespace, tmp_path: Path) -> None:
    def server(name: str) -> Manifest:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "name").write_text(name)
        return pod(
            name,
            image="localhost/python:dev",
            args=["-m", "http.server", "--bind", "0.0.0.0", "8000", "--directory", "/site"],
            labels={"app": "site"},
            ports=[{"name": "http", "containerPort": 8000}],
            readinessProbe={"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 1, "failureThreshold": 1},
            volumeMounts=[{"name": "site", "mountPath": "/site"}],
            volumes=[{"name": "site", "hostPath": {"path": str(folder)}}],
        )

    port = {"name": "web", "port": 80, "targetPort": "http"}
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "site"},
            "spec": {"selector": {"app": "site"}, "ports": [port]},
        },
        server("one"),
        server("two"),
    )
    url = namespace.service_url("site", 80)
    assert namespace.service_url("site", "web") == url
    namespace.wait("pod/one", "jsonpath={.status.phase}=Running")
    with pytest.raises(urllib.error.URLError, match="refused"):
        get(url + "/name")

    (tmp_path / "one" / "ready").touch()
    namespace.wait("pod/one", "condition=Ready")
    eventually(lambda: reachable(url) == {"one"})
    (tmp_path / "two" / "ready").touch()
    namespace.wait("pod/two", "condition=Ready")
    eventually(lambda: reachable(url) == {"one", "two"})
    namespace.kubectl("delete", "pod", "one", "--wait=false")
    eventually(lambda: reachable(url) == {"two"})


def reachable(url: str) -> set[str]:
    """Who answers twenty connections, each of which must be answered."""
    try:
        return {get(url + "/name") for _ in range(20)}
    except urllib.error.URLError as error:
        raise AssertionError(f"refused: {error}") from error


def test_the_audit_log_tells_who_did_what(namespace: Namespace) -> None:
    namespace.apply(config_map("mark"))
    lines = (namespace.cluster.logs_dir / "audit.log").read_text().splitlines()
    entries = [json.loads(line) for line in lines if namespace.name in line]
    done = {(entry["user"]["username"], entry["verb"], entry["objectRef"]["resource"]) for entry in entries}
    assert ("admin", "create", "configmaps") in done
    assert ("system:serviceaccount:kube-system:service-account-controller", "create", "serviceaccounts") in done
