"""What the operator's tests share: the operator as it is deployed, an object as its user reads it, pods, traffic.

Nothing here knows how the operator works. A story applies a spec, lets users send requests through the Service, and
reads conditions, events and children, as administrator, from the API server.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import shutil
import ssl
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import yaml

from cluster.support import Manifest, eventually
from demo.install import install
from localcluster import Cluster
from tandem_operator import names
from tandem_operator.api import GROUP, KIND, PLURAL, VERSION, Condition, SpeculativeDeployment
from tandem_worker.contract import ORIGIN_HEADER, WORKER_PORT, WorkerStatus

TINY_PAIR = Path(__file__).resolve().parents[2] / "examples" / "tiny-pair"
HTTP_ROUTES, GATEWAY_CRD = Path(__file__).with_name("httproutes.yaml"), "httproutes.gateway.networking.k8s.io"
API_VERSION = f"{GROUP}/{VERSION}"
SERVER_SIDE_APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
GROUP_OF = {
    PLURAL: f"apis/{API_VERSION}",
    "deployments": "apis/apps/v1",
    "controllerrevisions": "apis/apps/v1",
    "jobs": "apis/batch/v1",
    "poddisruptionbudgets": "apis/policy/v1",
    "events": "apis/events.k8s.io/v1",
    "httproutes": "apis/gateway.networking.k8s.io/v1",
}
CHILDREN = (
    "deployments", "controllerrevisions", "jobs", "services", "configmaps", "serviceaccounts", "poddisruptionbudgets",
)  # fmt: skip
LIMIT_SECONDS = 60


class Refused(Exception):
    """What the API server said, and its status code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Api:
    """The API server as administrator, in plain JSON: a request is a hundred times cheaper than a kubectl."""

    def __init__(self, cluster: Cluster) -> None:
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        trusted = ssl.create_default_context(cafile=server["certificate-authority"])
        headers = {"Authorization": f"Bearer {user['token']}"}
        self._http = httpx.Client(base_url=server["server"], verify=trusted, headers=headers, trust_env=False)

    def request(
        self, method: str, path: str, body: object = None, content_type: str = "application/json", **query: str
    ) -> Manifest:
        """Raises Refused."""
        content = None if body is None else json.dumps(body)
        answer = self._http.request(method, path, content=content, headers={"Content-Type": content_type}, params=query)
        said: Manifest = answer.json()
        if answer.is_error:
            raise Refused(answer.status_code, said.get("message", answer.reason_phrase))
        return said

    @staticmethod
    def path(plural: str, namespace: str, name: str = "") -> str:
        return f"/{GROUP_OF.get(plural, 'api/v1')}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


class Event(NamedTuple):
    type: str
    reason: str
    note: str


class WorkerPod(NamedTuple):
    name: str
    uid: str
    revision: str
    ip: str
    ready: bool
    restarts: int
    terminating: bool

    def status(self) -> WorkerStatus:
        return WorkerStatus.model_validate_json(
            httpx.get(f"http://{self.ip}:{WORKER_PORT}/status").raise_for_status().text
        )

    def metrics(self) -> str:
        return httpx.get(f"http://{self.ip}:{WORKER_PORT}/metrics").raise_for_status().text

    def tell(self, **behaviour: object) -> None:
        """Change what a simulated engine does."""
        httpx.post(f"http://{self.ip}:{WORKER_PORT}/sim", json=behaviour).raise_for_status()


def simulated(drafter_folder: str = "drafter", **fields: Any) -> Manifest:
    """A spec whose pair is validated for real and whose workers are simulators; `sim`: what they do from the start.

    A different `sim` is a different revision. Other fields override by their YAML names, one level deep.
    """
    behaviour = fields.pop("sim", {})
    spec: Manifest = {
        "target": {"source": {"hostPath": {"path": "target"}}},
        "drafter": {"source": {"hostPath": {"path": drafter_folder}}},
        "engine": {"image": "localhost/engine-simulator:dev"},
        "rollout": {"steps": [{"weight": 50}], "progressDeadlineSeconds": 60, "analysis": {"intervalSeconds": 1}},
        "pod": {"env": [{"name": f"SIM_{key.upper()}", "value": str(value)} for key, value in behaviour.items()]},
    }
    for key, value in fields.items():
        spec[key] = {**spec.get(key, {}), **value} if isinstance(value, dict) else value
    return spec


def real(drafter_folder: str = "drafter", **fields: Any) -> Manifest:
    """As `simulated`, with the worker that users get."""
    return {**simulated(drafter_folder, **fields), "engine": {}}


@dataclass(frozen=True)
class Operator:
    """The operator of deploy/, shared by all tests of the session."""

    cluster: Cluster
    api: Api
    checkpoints: Path  # the one prefix that hostPath sources may name

    namespace = "tandem-system"
    name = "tandem-operator"

    @classmethod
    def installed(cls, cluster: Cluster) -> Operator:
        """Install it, or find it installed by another process of this test session."""
        checkpoints = cluster.layout.directory / "checkpoints"
        operator = cls(cluster, Api(cluster), checkpoints)
        with operator._alone():
            if not checkpoints.exists():
                checkpoints.mkdir()
                install(cluster, (checkpoints,))
        return operator

    @contextmanager
    def down(self) -> Iterator[None]:
        """While the block runs there is no operator. Only one test at a time may ask for that."""
        with self._alone():
            self._scale(0)
            eventually(lambda: not self.pods(), LIMIT_SECONDS)
            try:
                yield
            finally:
                self._scale(1)
                self._wait_until_ready()

    def kill(self) -> None:
        """Delete its pod; the Deployment brings the next one."""
        with self._alone():
            (before,) = [pod["metadata"] for pod in self.pods()]
            path = self.api.path("pods", self.namespace, before["name"])
            self.api.request("DELETE", path, {"gracePeriodSeconds": 0, "kind": "DeleteOptions", "apiVersion": "v1"})
            eventually(lambda: before["uid"] not in [pod["metadata"]["uid"] for pod in self.pods()], LIMIT_SECONDS)
            self._wait_until_ready()

    def pods(self) -> list[Manifest]:
        found: list[Manifest] = self.api.request("GET", self.api.path("pods", self.namespace))["items"]
        return found

    def get(self, path: str) -> str:
        """Of its own HTTP server, once one that answers is there."""

        def answer() -> str:
            try:
                return "".join(
                    httpx.get(f"http://{pod['status']['podIP']}:8080{path}").raise_for_status().text
                    for pod in self.pods()
                    if _is_ready(pod)
                )
            except httpx.HTTPError:
                return ""

        return eventually(answer, LIMIT_SECONDS)

    def requests(self) -> list[Manifest]:
        """All that it asked the API server for since the cluster began, from the audit log."""
        account = f"system:serviceaccount:{self.namespace}:{self.name}"
        lines = (self.cluster.logs_dir / "audit.log").read_text().splitlines()
        asked: list[Manifest] = [json.loads(line) for line in lines if account in line]
        return [request for request in asked if request["user"]["username"] == account]

    def denied(self) -> list[Manifest]:
        """Requests that its rights did not cover. What admission refuses, as a quota does, is another matter."""
        return [r for r in self.requests() if r["annotations"].get("authorization.k8s.io/decision") != "allow"]

    def _scale(self, replicas: int) -> None:
        path = self.api.path("deployments", self.namespace, f"{self.name}/scale")
        self.api.request("PATCH", path, {"spec": {"replicas": replicas}}, MERGE)

    def _wait_until_ready(self) -> None:
        eventually(lambda: [pod for pod in self.pods() if _is_ready(pod)], LIMIT_SECONDS)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self.cluster.layout.directory / "operator.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@dataclass(frozen=True)
class Story:
    """One namespace, in which a user's objects live."""

    operator: Operator
    namespace: str

    @classmethod
    @contextmanager
    def begun(cls, operator: Operator) -> Iterator[Story]:
        """In a fresh namespace, which is deleted afterwards, without waiting for the end."""
        name = f"story-{uuid.uuid4().hex[:8]}"
        operator.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        accounts = operator.api.path("serviceaccounts", name)
        eventually(lambda: operator.api.request("GET", accounts)["items"])
        yield cls(operator, name)
        operator.api.request("DELETE", f"/api/v1/namespaces/{name}")

    @property
    def api(self) -> Api:
        return self.operator.api

    def path(self, plural: str, name: str = "") -> str:
        return self.api.path(plural, self.namespace, name)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.operator.cluster.kubectl(f"--namespace={self.namespace}", *arguments, stdin=stdin)

    # --- what the user does ---

    def checkpoint(self, name: str, like: str = "drafter") -> Path:
        """A folder of this story's own, with a copy of a part of the tiny pair."""
        folder = self.operator.checkpoints / self.namespace / name
        shutil.copytree(TINY_PAIR / like, folder)
        return folder

    def apply(self, spec: Manifest, name: str = "pair", **annotations: str) -> SpeculativeDeployment:
        """Server-side apply. Names of folders in hostPath become paths; those of the tiny pair are made as needed."""
        spec = json.loads(json.dumps(spec))
        for part in ("target", "drafter"):
            source = spec.get(part, {}).get("source", {}).get("hostPath")
            if source and not source["path"].startswith("/"):
                source["path"] = str(self._folder(source["path"]))
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name, "annotations": annotations},
            "spec": spec,
        }
        path = self.path(PLURAL, name)
        query = {"fieldManager": "user", "force": "true", "fieldValidation": "Strict"}
        return SpeculativeDeployment.model_validate(self.api.request("PATCH", path, body, SERVER_SIDE_APPLY, **query))

    def apply_manifests(self, *manifests: Manifest) -> None:
        """Of any kind, into this namespace where the kind has one."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))

    def delete(self, name: str = "pair") -> None:
        self.api.request("DELETE", self.path(PLURAL, name))

    def _folder(self, name: str) -> Path:
        folder = self.operator.checkpoints / self.namespace / name
        if not folder.exists() and (TINY_PAIR / name).is_dir():
            self.checkpoint(name, like=name)
        return folder

    @contextmanager
    def traffic(self, name: str = "pair", users: int = 2) -> Iterator[Traffic]:
        """Users who keep asking through the Service while the block runs."""
        url = self.operator.cluster.service_url(self.namespace, name, 80, timeout_seconds=LIMIT_SECONDS)
        traffic = Traffic(f"{url}/v1/completions", name)
        threads = [threading.Thread(target=traffic.keep_asking, daemon=True) for _ in range(users)]
        for thread in threads:
            thread.start()
        try:
            yield traffic
        finally:
            traffic.over.set()
            for thread in threads:
                thread.join()

    def install_gateway_api(self) -> None:
        """The kinds of it that Tandem knows, in the whole cluster; nothing carries requests by them there."""
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(HTTP_ROUTES))
        self.kubectl("wait", "--for=condition=Established", "--timeout=30s", f"crd/{GATEWAY_CRD}")

    def route(self, name: str, backends: dict[str, int]) -> None:
        """An HTTPRoute of one rule."""
        refs = [{"name": service, "port": 80, "weight": weight} for service, weight in backends.items()]
        body = {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": {"name": name},
            "spec": {"parentRefs": [{"name": "gateway"}], "rules": [{"backendRefs": refs}]},
        }
        self.api.request("POST", self.path("httproutes"), body)

    def weights(self, name: str) -> dict[str, int]:
        """Of the first rule of an HTTPRoute, by Service."""
        found = self.api.request("GET", self.path("httproutes", name))
        return {ref["name"]: ref["weight"] for ref in found["spec"]["rules"][0]["backendRefs"]}

    # --- what the user reads ---

    def show(self, name: str = "pair") -> SpeculativeDeployment:
        return SpeculativeDeployment.model_validate(self.api.request("GET", self.path(PLURAL, name)))

    def items(self, plural: str, name: str = "") -> list[Manifest]:
        """Objects of one kind, those that belong to SpeculativeDeployment `name` if one is given."""
        query = {"labelSelector": f"{names.NAME}={name}"} if name else {}
        found: list[Manifest] = self.api.request("GET", self.path(plural), **query)["items"]
        return found

    def children(self) -> list[str]:
        """Every child there is, as `kind/name`."""
        mine = {f"{names.MANAGED_BY}": names.FIELD_MANAGER}
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in mine.items())}
        return [
            f"{plural}/{item['metadata']['name']}"
            for plural in (*CHILDREN, "pods")
            for item in self.api.request("GET", self.path(plural), **query)["items"]
        ]

    def pods(self, name: str = "pair", revision: str = "") -> list[WorkerPod]:
        """Workers, those of one revision if one is given."""
        query = {"labelSelector": f"{names.NAME}={name},{names.ROLE}={names.WORKER}"}
        found = [_worker_pod(item) for item in self.api.request("GET", self.path("pods"), **query)["items"]]
        return [pod for pod in found if revision in ("", pod.revision)]

    def ready_pods(self, name: str = "pair", revision: str = "") -> list[WorkerPod]:
        return [pod for pod in self.pods(name, revision) if pod.ready and not pod.terminating]

    def serving(self, name: str = "pair") -> dict[str, int]:
        """Ready workers by revision."""
        return dict(Counter(pod.revision for pod in self.ready_pods(name)))

    def until_speculating(self, enabled: bool, name: str = "pair") -> None:
        """Until every ready worker says so itself."""

        def all_do(_: object) -> bool:
            try:
                said = {pod.status().speculation_enabled for pod in self.ready_pods(name)}
            except httpx.HTTPError:  # it went away meanwhile
                return False
            return said == {enabled}

        self.until(f"all workers {'speculate' if enabled else 'run the target alone'}", all_do, name)

    def events(self, name: str = "pair") -> list[Event]:
        """In the order of their making."""
        of_it = {"kind": KIND, "name": name}
        mine = [item for item in self.items("events") if of_it.items() <= item.get("regarding", {}).items()]
        mine.sort(key=lambda item: int(item["metadata"]["resourceVersion"]))
        return [Event(item["type"], item["reason"], item["note"]) for item in mine]

    def event(self, reason: str, name: str = "pair") -> Event:
        """The newest with this reason; waits for it, since events follow status."""

        def told(_: object) -> list[Event]:
            return [event for event in self.events(name) if event.reason == reason]

        self.until(f"an event {reason}", told, name, limit_seconds=10)
        return told(None)[-1]

    def until(
        self,
        what: str,
        holds: Callable[[SpeculativeDeployment], object],
        name: str = "pair",
        limit_seconds: float = LIMIT_SECONDS,
    ) -> SpeculativeDeployment:
        """The object once `holds` says yes of it. Fails with all that a user would look at."""
        deadline = time.monotonic() + limit_seconds
        while not holds(shown := self.show(name)):
            if time.monotonic() > deadline:
                raise AssertionError(f"after {limit_seconds:g} s still not: {what}\n{self.describe(name)}")
            time.sleep(0.15)
        return shown

    def until_condition(
        self, kind: str, status: str, reason: str = "", name: str = "pair", limit_seconds: float = LIMIT_SECONDS
    ) -> Condition:
        """The condition, once it says so of the present spec."""

        def said(shown: SpeculativeDeployment) -> bool:
            found = condition(shown, kind)
            of_now = found.observed_generation == shown.metadata.generation
            return of_now and found.status == status and reason in ("", found.reason)

        what = f"{kind} is {status} {reason}".strip()
        return condition(self.until(what, said, name, limit_seconds), kind)

    def until_stable(self, name: str = "pair", limit_seconds: float = LIMIT_SECONDS) -> str:
        """Rolled out and ready; -> the stable revision."""
        self.until_condition("Progressing", "False", "Complete", name, limit_seconds)
        self.until_condition("Ready", "True", "Serving", name, limit_seconds)
        return self.show(name).status.stable_revision

    def describe(self, name: str = "pair") -> str:
        """As `kubectl describe` and `kubectl get pods`."""
        conditions = [
            f"  {c.type}={c.status} {c.reason} (generation {c.observed_generation}): {c.message}"
            for c in self.show(name).status.conditions
        ]
        events = [f"  {event.type} {event.reason}: {event.note}" for event in self.events(name)]
        pods = [f"  {pod}" for pod in self.pods(name)]
        return "\n".join(["conditions", *conditions, "events", *events, "pods", *pods, f"{self.children()}"])


@dataclass
class Traffic:
    """What users sent and got."""

    url: str
    model: str
    answered: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def keep_asking(self) -> None:
        prompts = itertools.count()
        with httpx.Client(timeout=30, trust_env=False, headers={ORIGIN_HEADER: "user"}) as http:
            while not self.over.wait(0.05):
                body = {"model": self.model, "prompt": f"question {next(prompts)}", "max_tokens": 200}
                try:
                    answer = http.post(self.url, json=body)
                except httpx.TransportError:
                    continue  # no worker is ready, or one went away
                self.answered += answer.status_code == 200


def pvc(claim: str, path: str) -> dict[str, Any]:
    return {"source": {"pvc": {"claimName": claim, "path": path}}}


def provide(story: Story, claim: str, folder: Path, mode: str = "ReadOnlyMany") -> None:
    volume = f"{story.namespace}-{claim}"
    shared = {"accessModes": [mode], "storageClassName": ""}
    story.kubectl("apply", "-f", "-", stdin=json.dumps({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
        "spec": {**shared, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}},
    }))  # fmt: skip
    story.kubectl("apply", "-f", "-", stdin=json.dumps({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim},
        "spec": {**shared, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}},
    }))  # fmt: skip


def condition(shown: SpeculativeDeployment, kind: str) -> Condition:
    """As the object says it; Unknown while it says nothing."""
    found = next((c for c in shown.status.conditions if c.type == kind), None)
    return found or Condition.model_validate(
        {"type": kind, "status": "Unknown", "reason": "Absent", "lastTransitionTime": "1970-01-01T00:00:00Z"}
    )


def _worker_pod(item: Manifest) -> WorkerPod:
    metadata, status = item["metadata"], item["status"]
    return WorkerPod(
        name=metadata["name"],
        uid=metadata["uid"],
        revision=metadata["labels"][names.REVISION],
        ip=status.get("podIP", ""),
        ready=_is_ready(item),
        restarts=sum(container["restartCount"] for container in status.get("containerStatuses", [])),
        terminating="deletionTimestamp" in metadata,
    )


def _is_ready(pod: Manifest) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
