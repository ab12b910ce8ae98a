"""The parts of the local cluster that need no cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster import build, processes
from localcluster.agent.environment import ConfigError, Translation, command_line, expand, field_value, variables
from localcluster.agent.logfile import start_of_last_lines
from localcluster.agent.model import Condition, Container, FieldReference, Pod, Service
from localcluster.agent.services import endpoints, is_served
from localcluster.agent.status import ContainerReport, Running, State, Terminated, Waiting, pod_phase, pod_status
from localcluster.agent.volumes import write_files
from localcluster.gpus import Allocator, NoGpu, labels, parse
from localcluster.images import entry_point, image_name
from localcluster.paths import CHECKOUT
from tools.gobuild import version_numbers
from tools.once import ToolError

NOW = datetime(2026, 1, 1, tzinfo=UTC)

# --- binaries --------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_binaries_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache directory with a build in it, and no variable set."""
    monkeypatch.delenv("TANDEM_KUBE_BIN", raising=False)
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build.KUBE.binary().parent.mkdir(parents=True)
    build.KUBE.binary().touch()
    return build.KUBE.binary()


def test_the_cached_build_serves_when_nothing_is_named(no_binaries_named: Path) -> None:
    assert set(build.binaries().values()) == {no_binaries_named}


def test_a_folder_of_binaries_is_completed_from_the_build(
    no_binaries_named: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("etcd", "kube-apiserver", "kubectl"):  # what envtest downloads
        (tmp_path / name).touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    found = build.binaries()
    assert found["etcd"] == tmp_path / "etcd"
    assert found["kube-scheduler"] == no_binaries_named


def test_a_multi_call_binary_that_is_named_serves_all(
    no_binaries_named: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.setenv("TANDEM_KUBE_BIN", str(mine))
    assert build.binaries() == dict.fromkeys(build.COMPONENTS, mine)


def test_a_named_folder_that_is_missing_is_told(no_binaries_named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_KUBE_BIN", "/no/such/folder")
    with pytest.raises(ToolError, match="TANDEM_KUBE_BIN names /no/such/folder, which does not exist"):
        build.binaries()


FAKE_GO = """#!/bin/sh
case $1 in
env) echo go1.99.0 ;;
list) printf 'a\\nb/c\\nd.org/e/v2\\n' ;;
build)
  echo build >> "$LOG"
  [ -n "$BREAK" ] && { echo 'main.go:7: no such thing' >&2; exit 1; }
  echo d.org/e/v2 >&2
  while [ "$1" != -o ]; do shift; done
  sleep 0.3
  echo binary > "$2" ;;
esac
"""


@pytest.fixture
def fake_go(no_binaries_named: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A `go` on PATH that builds in no time and writes a line per build to the log that is returned."""
    no_binaries_named.unlink()
    go = tmp_path / "path" / "go"
    go.parent.mkdir()
    go.write_text(FAKE_GO)
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(go.parent), prepend=":")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def test_two_who_need_the_binaries_build_them_once(fake_go: Path) -> None:
    script = "from localcluster import build; print(build.KUBE.build())"
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT / "hack")}
    builders = [
        subprocess.Popen(
            [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [builder.communicate() for builder in builders]
    assert [out for out, _ in said] == [f"{build.KUBE.binary()}\n"] * 2
    assert build.KUBE.binary().read_text() == "binary\n"
    assert fake_go.read_text() == "build\n"
    errors = "".join(error for _, error in said)
    assert "usually 8 to 12 minutes on 2 cores" in errors
    assert "compiled 1 of at most 3 packages" in errors


def test_a_build_that_fails_says_why_and_leaves_no_binary(fake_go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREAK", "1")
    with pytest.raises(ToolError, match=r"main\.go:7: no such thing"):
        build.KUBE.build()
    assert not build.KUBE.binary().exists()


def test_an_old_go_is_told_from_a_new_one() -> None:
    assert version_numbers("go1.9.7") < version_numbers("1.24.0") <= version_numbers("go1.26.8\n")
    assert version_numbers("") < version_numbers("1.24.0")


# --- images ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reference",
    [
        "tandem-worker",
        "localhost/tandem-worker:dev",
        "registry:5000/x/tandem-worker",
        "a.io/b/tandem-worker:1@sha256:0f",
    ],
)
def test_an_image_is_known_by_the_last_part_of_its_name(reference: str) -> None:
    assert image_name(reference) == "tandem-worker"
    assert entry_point(reference, {}) == [sys.executable, "-m", "tandem_worker"]


def test_a_cluster_may_know_more_images() -> None:
    assert entry_point("x/mine:1", {"mine": ["echo"]}) == ["echo"]
    assert entry_point("x/mine:1", {}) is None


# --- what a process is told ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)-$(B)", "1-$(B)"),
        ("$$(A)", "$(A)"),
        ("$A $()", "$A $()"),
        ("--host=$(A)", "--host=1"),
    ],
)
def test_variables_are_expanded_as_kubernetes_does(text: str, expected: str) -> None:
    assert expand(text, {"A": "1"}) == expected


@given(st.text())
def test_text_without_references_is_left_alone(text: str) -> None:
    text = text.replace("$(", "")
    assert expand(text, {"A": "1"}) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/models/target", "/pod/target"),
        ("--target=/models/target/snapshot", "--target=/pod/target/snapshot"),
        ("cat /models/x;ls /models", "cat /pod/models/x;ls /pod/models"),
        ('{"a": "/models/target"}', '{"a": "/pod/target"}'),
        ("/models2 /x/models /models-old", "/models2 /x/models /models-old"),
        ("--host=0.0.0.0", "--host=127.65.1.1"),
        ("10.0.0.0", "10.0.0.0"),
    ],
)
def test_mount_paths_and_the_bind_address_are_translated(text: str, expected: str) -> None:
    paths = {"/models": Path("/pod/models"), "/models/target/": Path("/pod/target")}
    assert Translation(paths, "127.65.1.1")(text) == expected


def test_command_replaces_the_entry_point_and_arguments_follow() -> None:
    translate = Translation({"/tmp": Path("/pod")}, "127.65.1.1")
    with_command = Container(name="c", command=["sh", "-c"], args=["$(A)"])
    assert command_line(with_command, ["/tmp/image"], {"A": "/tmp/x"}, translate) == ["sh", "-c", "/pod/x"]
    args_only = Container(name="c", args=["serve", "/tmp"])
    assert command_line(args_only, ["/tmp/image"], {}, translate) == ["/tmp/image", "serve", "/pod"]


def test_a_missing_key_is_named_unless_it_is_optional() -> None:
    def container(optional: bool) -> Container:
        reference = {"name": "settings", "key": "mode", "optional": optional}
        return Container.model_validate(
            {"name": "c", "env": [{"name": "MODE", "valueFrom": {"configMapKeyRef": reference}}]}
        )

    with pytest.raises(ConfigError, match='configmap "settings" has no key "mode"'):
        variables(container(optional=False), lambda kind, name: {}, lambda reference: "")
    assert variables(container(optional=True), lambda kind, name: {}, lambda reference: "") == {}


def test_a_field_that_is_not_known_is_an_error_not_an_empty_value() -> None:
    with pytest.raises(ConfigError, match=r"status\.mood"):
        field_value(pod(), FieldReference(field_path="status.mood"), "", "")


# --- status ----------------------------------------------------------------------------------------------------------


def pod(restart_policy: str = "Always", deleting: bool = False) -> Pod:
    metadata = {"name": "p", "namespace": "n", "uid": "u", "deletionTimestamp": NOW if deleting else None}
    spec = {"restartPolicy": restart_policy, "containers": [{"name": "c"}]}
    return Pod.model_validate({"metadata": metadata, "spec": spec})


def report(state: State, last: Terminated | None = None, ready: bool = False) -> ContainerReport:
    return ContainerReport(name="c", image="i", state=state, last=last, ready=ready)


def ended(exit_code: int) -> Terminated:
    return Terminated(exit_code, "", "", NOW, NOW)


@pytest.mark.parametrize(
    ("policy", "deleting", "states", "phase"),
    [
        ("Always", False, [Waiting("ContainerCreating")], "Pending"),
        ("Always", False, [Running(NOW), Waiting("ErrImagePull")], "Pending"),
        ("Always", False, [Running(NOW)], "Running"),
        ("Always", False, [ended(1)], "Running"),
        ("Always", False, [ended(0)], "Running"),
        ("Always", True, [ended(0)], "Succeeded"),
        ("Always", True, [ended(0), ended(137)], "Failed"),
        ("OnFailure", False, [ended(0), ended(1)], "Running"),
        ("OnFailure", False, [ended(0), ended(0)], "Succeeded"),
        ("Never", False, [ended(0), Running(NOW)], "Running"),
        ("Never", False, [ended(0), ended(1)], "Failed"),
    ],
)
def test_phase_is_a_kubelets(policy: str, deleting: bool, states: list[State], phase: str) -> None:
    assert pod_phase(pod(policy, deleting), [], [report(state) for state in states]) == phase


def test_a_pod_in_back_off_runs_and_one_whose_init_container_failed_for_good_has_failed() -> None:
    assert pod_phase(pod(), [], [report(Waiting("CrashLoopBackOff"), last=ended(1))]) == "Running"
    waiting = [report(Waiting("PodInitializing"))]
    assert pod_phase(pod("Never"), [report(ended(1))], waiting) == "Failed"
    assert pod_phase(pod("OnFailure"), [report(ended(1))], waiting) == "Pending"


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    def written(ready: bool, now: datetime, before: list[Condition]) -> dict[str, Condition]:
        reports = [report(Running(NOW), ready=ready)]
        status = pod_status(
            pod(), [], reports, pod_ip="127.65.1.1", host_ip="127.65.0.1", started_at=NOW, now=now, before=before
        )
        conditions = [{key: value for key, value in item.items() if value} for item in status["conditions"]]
        return {item["type"]: Condition.model_validate(item) for item in conditions}

    first = written(False, NOW, [])
    second = written(False, NOW + timedelta(minutes=1), list(first.values()))
    third = written(True, NOW + timedelta(minutes=2), list(second.values()))
    assert (first["Ready"].reason, first["Ready"].message) == (
        "ContainersNotReady",
        "containers with unready status: [c]",
    )
    assert second == first
    assert (third["Ready"].status, third["Ready"].reason) == ("True", "")
    assert third["Ready"].last_transition_time == "2026-01-01T00:02:00Z"
    assert third["Initialized"] == first["Initialized"]


# --- Services --------------------------------------------------------------------------------------------------------


def service(**spec: object) -> Service:
    ports = [{"port": 80, "targetPort": "http"}]
    return Service.model_validate(
        {"metadata": {"name": "s", "namespace": "n"}, "spec": {"selector": {"app": "a"}, "ports": ports, **spec}}
    )


def server(
    address: str,
    ready: bool = True,
    app: str = "a",
    namespace: str = "n",
    phase: str = "Running",
    deleting: bool = False,
) -> Pod:
    ports = [{"name": "http", "containerPort": 8000}]
    metadata = {"name": address, "namespace": namespace, "labels": {"app": app, "x": "y"}}
    return Pod.model_validate(
        {
            "metadata": metadata | {"deletionTimestamp": NOW if deleting else None},
            "spec": {"containers": [{"name": "c", "ports": ports}]},
            "status": {
                "phase": phase,
                "podIP": address,
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            },
        }
    )


def test_only_ready_pods_of_the_selector_and_namespace_take_connections() -> None:
    pods = [
        server("127.65.1.1"),
        server("127.65.1.2", ready=False),
        server("127.65.1.3", app="b"),
        server("127.65.1.4", namespace="m"),
        server("127.65.1.5", phase="Succeeded"),
        server("127.65.1.6", deleting=True),
    ]
    mine = service()
    assert endpoints(mine, mine.spec.ports[0], pods) == [("127.65.1.1", 8000)]
    eager = service(publishNotReadyAddresses=True)
    assert endpoints(eager, eager.spec.ports[0], pods) == [("127.65.1.1", 8000), ("127.65.1.2", 8000)]


def test_headless_and_selectorless_services_have_no_listener() -> None:
    assert is_served(service())
    assert not is_served(service(clusterIP="None"))
    assert not is_served(service(selector={}))
    assert not is_served(service(type="ExternalName"))


# --- files and logs --------------------------------------------------------------------------------------------------


def test_files_follow_their_config_map(tmp_path: Path) -> None:
    write_files(tmp_path, {"a": b"1", "deep/b": b"2"})
    before = (tmp_path / "a").resolve()
    write_files(tmp_path, {"a": b"1", "deep/b": b"2"})
    assert (tmp_path / "a").resolve() == before  # nothing to do, nothing touched
    write_files(tmp_path, {"a": b"3", "c": b"4"})
    visible = {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.startswith("..")}
    assert visible == {"a": b"3", "c": b"4"}
    assert len([path for path in tmp_path.iterdir() if path.is_dir() and not path.is_symlink()]) == 1


@given(st.binary(), st.integers(min_value=0, max_value=5))
def test_the_last_lines_are_the_last_lines(tmp_path_factory: pytest.TempPathFactory, data: bytes, lines: int) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(data)
    kept = data[start_of_last_lines(path, lines) :]
    assert data.endswith(kept)
    assert kept.count(b"\n") <= lines
    if data.count(b"\n") <= lines and not (lines == 0 and data) and not (data and data[-1:] != b"\n"):
        assert kept == data


# --- processes -------------------------------------------------------------------------------------------------------


def lives(process: int) -> bool:
    """False for a zombie, too, whose environment is empty."""
    try:
        return bool(Path(f"/proc/{process}/environ").read_bytes())
    except OSError:
        return False


def test_every_descendant_with_the_marker_ends_and_no_other(tmp_path: Path) -> None:
    mine, other = (
        subprocess.Popen(
            ["sh", "-c", "setsid sleep 1000 & echo $!; wait"],
            env=os.environ | dict([marker.split("=")]),
            stdout=subprocess.PIPE,
            text=True,
        )
        for marker in (processes.cluster_marker(tmp_path), processes.cluster_marker(tmp_path / "other"))
    )
    try:
        assert mine.stdout
        grandchild = int(mine.stdout.readline())
        processes.end_all([processes.cluster_marker(tmp_path)])
        assert mine.wait() == -9
        assert not lives(grandchild)
        assert other.poll() is None
    finally:
        processes.end_all([processes.cluster_marker(tmp_path / "other")])
        other.wait()
        for process in (mine, other):
            assert process.stdout
            process.stdout.close()


# --- GPUs ------------------------------------------------------------------------------------------------------------

TWO_GPUS = parse("GPU-a, NVIDIA H200, 143771\nGPU-b, NVIDIA H200, 143771\n")


def test_gpus_are_read_from_what_nvidia_smi_prints() -> None:
    assert [(gpu.uuid, gpu.name, gpu.memory_mib) for gpu in TWO_GPUS] == [
        ("GPU-a", "NVIDIA H200", 143771),
        ("GPU-b", "NVIDIA H200", 143771),
    ]
    assert parse("No devices were found\n") == ()


def test_containers_get_the_gpu_that_the_fewest_share() -> None:
    gpus = Allocator(TWO_GPUS, shares=2)
    assert gpus.environment("pod-1", "worker", 1) == {"CUDA_VISIBLE_DEVICES": "GPU-a"}
    assert gpus.environment("pod-2", "worker", 1) == {"CUDA_VISIBLE_DEVICES": "GPU-b"}
    assert gpus.environment("pod-3", "worker", 2) == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert gpus.environment("pod-1", "worker", 1) == {"CUDA_VISIBLE_DEVICES": "GPU-a"}, "a restart gets the same"


def test_a_container_that_asks_for_no_gpu_sees_none() -> None:
    assert Allocator(TWO_GPUS, shares=1).environment("pod", "worker", 0) == {"CUDA_VISIBLE_DEVICES": ""}
    assert Allocator((), shares=1).environment("pod", "worker", 1) == {}, "claimed GPUs stand for nothing"


def test_no_more_is_given_than_there_is_and_what_a_pod_held_is_given_again() -> None:
    gpus = Allocator(TWO_GPUS[:1], shares=2)
    gpus.environment("pod-1", "worker", 1)
    gpus.environment("pod-2", "worker", 1)
    with pytest.raises(NoGpu, match=r"1 nvidia\.com/gpu wanted, 0 free"):
        gpus.environment("pod-3", "worker", 1)
    gpus.release("pod-1")
    assert gpus.environment("pod-3", "worker", 1) == {"CUDA_VISIBLE_DEVICES": "GPU-a"}


def test_the_node_is_labelled_as_by_nvidias_feature_discovery() -> None:
    assert labels(TWO_GPUS, shares=4) == {
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.memory": "143771",
        "nvidia.com/gpu.product": "NVIDIA-H200-SHARED",
        "nvidia.com/gpu.replicas": "4",
    }
    assert labels((), shares=1) == {}
