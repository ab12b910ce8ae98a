"""A cluster with a hollow node, and places in it: a namespace, a proxy, an operator that serves only that namespace."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from crashtest.operator import Operator
from crashtest.proxy import Proxy
from hollow.node import WHERE
from localcluster import Cluster
from localcluster.cluster import ClusterError
from localcluster.paths import CHECKOUT
from tandem_operator import names
from tandem_operator.api import GROUP, KIND, PLURAL, VERSION, SpeculativeDeployment
from tandem_operator.settings import Settings

Manifest = dict[str, Any]

GROUPS = {
    PLURAL: f"apis/{GROUP}/{VERSION}",
    "deployments": "apis/apps/v1",
    "controllerrevisions": "apis/apps/v1",
    "jobs": "apis/batch/v1",
    "poddisruptionbudgets": "apis/policy/v1",
    "events": "apis/events.k8s.io/v1",
    "leases": "apis/coordination.k8s.io/v1",
}
CHILDREN = (
    "deployments", "controllerrevisions", "jobs", "services", "configmaps", "serviceaccounts", "poddisruptionbudgets",
    "pods",
)  # fmt: skip
NAME = "pair"
LIMIT_SECONDS = 300.0  # a busy machine takes its time
STILL_SECONDS = 5.0  # more than an interval and a read of a worker that does not answer take


def hollow_spec(drafter: str = "a", replicas: int = 2, **behaviour: object) -> Manifest:
    """A pair whose workers are hollow; another `behaviour` is another revision."""
    env = {"requests_per_second": 60, **behaviour}
    return {
        "target": {"source": {"hostPath": {"path": "/models/target"}}},
        "drafter": {"source": {"hostPath": {"path": f"/models/{drafter}"}}},
        "replicas": replicas,
        "rollout": {
            "steps": [{"weight": 50}],
            "progressDeadlineSeconds": 600,
            "analysis": {"intervalSeconds": 1, "minimumDrafts": 30, "minimumRequests": 3},
        },
        "pod": {**WHERE, "env": [{"name": f"HOLLOW_{k.upper()}", "value": str(v)} for k, v in env.items()]},
    }


@dataclass
class Lab:
    cluster: Cluster
    http: aiohttp.ClientSession
    server: str
    trusted: ssl.SSLContext

    @classmethod
    @asynccontextmanager
    async def of(cls, cluster: Cluster) -> AsyncIterator[Lab]:
        """`cluster` was started with a hollow node."""
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        trusted = ssl.create_default_context(cafile=server["certificate-authority"])
        headers = {"Authorization": f"Bearer {user['token']}"}
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as http:
            lab = cls(cluster, http, server["server"], trusted)
            await lab._install_crd()
            yield lab

    async def ask(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Manifest:
        """Raises aiohttp.ClientResponseError."""
        data = None if body is None else json.dumps(body)
        async with self.http.request(
            method, self.server + path, data=data, headers={"Content-Type": kind}, ssl=self.trusted
        ) as answer:
            said = await answer.text()
            if answer.status >= 400:
                raise aiohttp.ClientResponseError(answer.request_info, (), status=answer.status, message=said)
            found: Manifest = json.loads(said)
            return found

    async def _install_crd(self) -> None:
        crd = str(CHECKOUT / "crds" / f"{PLURAL}.yaml")
        try:
            await asyncio.to_thread(self.cluster.kubectl, "apply", "--filename", crd)
        except ClusterError as error:
            if "AlreadyExists" not in str(error):  # another process of the tests made it at the same moment
                raise
        while True:
            with suppress(aiohttp.ClientResponseError):
                await self.ask("GET", f"/{GROUPS[PLURAL]}/{PLURAL}")
                return
            await asyncio.sleep(0.2)

    @asynccontextmanager
    async def place(self, **settings: Any) -> AsyncIterator[Place]:
        """With an operator that is started anew whenever it dies."""
        name = f"place-{uuid.uuid4().hex[:8]}"
        await self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        async with Proxy.started(self.cluster) as proxy:
            kubeconfig = proxy.write_kubeconfig(self.cluster.layout.directory / f"{name}.kubeconfig")
            place = Place(self, name, proxy, self.operator(name, kubeconfig, **settings))
            proxy.kill = place.operator.kill
            place.keeper = asyncio.create_task(place.operator.keep_running())
            try:
                yield place
            finally:
                place.keeper.cancel()
                place.operator.kill()
                await self.ask("DELETE", f"/api/v1/namespaces/{name}")

    def operator(self, namespace: str, kubeconfig: Path, **settings: Any) -> Operator:
        chosen: Manifest = {"worker_image": "worker", "allowed_host_paths": ("/models",), "http_host": "127.0.0.1"}
        chosen |= {
            "namespaces": (namespace,),
            "http_port": 0,
            "lease_namespace": namespace,
            "identity": "pod",
            **settings,
        }
        log = self.cluster.logs_dir / f"operator-{namespace}.log"
        return Operator(kubeconfig, log, Settings.model_validate(chosen))


@dataclass
class Place:
    lab: Lab
    namespace: str
    proxy: Proxy
    operator: Operator
    keeper: asyncio.Task[None] = field(init=False)  # starts the operator anew whenever it has died

    def path(self, plural: str, name: str = "") -> str:
        return f"/{GROUPS.get(plural, 'api/v1')}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    async def apply(self, spec: Manifest, **annotations: str) -> None:
        metadata = {"name": NAME, "annotations": annotations}
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata, "spec": spec}
        query = "?fieldManager=user&force=true&fieldValidation=Strict"
        await self.lab.ask("PATCH", self.path(PLURAL, NAME) + query, body, "application/apply-patch+yaml")

    async def show(self) -> SpeculativeDeployment:
        return SpeculativeDeployment.model_validate(await self.lab.ask("GET", self.path(PLURAL, NAME)))

    async def items(self, plural: str) -> list[Manifest]:
        found: list[Manifest] = (await self.lab.ask("GET", self.path(plural)))["items"]
        return found

    async def until(
        self, what: str, holds: Callable[[SpeculativeDeployment], object], limit_seconds: float = LIMIT_SECONDS
    ) -> SpeculativeDeployment:
        """The object once `holds` says yes of it. Raises AssertionError with what there is instead."""
        deadline = time.monotonic() + limit_seconds
        while True:
            try:
                if holds(shown := await self.show()):
                    return shown
            except (aiohttp.ClientError, TimeoutError):  # the API server is away
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                said = "\n".join(f"  {c.type}={c.status} {c.reason}: {c.message}" for c in shown.status.conditions)
                raise AssertionError(f"{self.namespace}: after {limit_seconds:g} s still not: {what}\n{said}")
            await asyncio.sleep(0.1)

    async def until_settled(self, limit_seconds: float = LIMIT_SECONDS) -> SpeculativeDeployment:
        """Rolled out or taken back, and as many workers ready as the spec asks for, of the stable revision alone."""

        def settled(shown: SpeculativeDeployment) -> bool:
            said = {c.type: c for c in shown.status.conditions if c.observed_generation == shown.metadata.generation}
            still = "Progressing" in said and said["Progressing"].status == "False"
            quiet = not shown.status.canary_revision and shown.status.replicas == shown.spec.replicas
            return still and quiet and said["Ready"].status == "True"

        await self.until("settled", settled, limit_seconds)
        deadline = time.monotonic() + limit_seconds
        while True:
            shown = await self.show()
            pods = [p for p in await self.items("pods") if p["metadata"]["labels"].get(names.ROLE) == names.WORKER]
            of = [p["metadata"]["labels"][names.REVISION] for p in pods]
            if settled(shown) and of == [shown.status.stable_revision] * shown.spec.replicas:
                return shown
            assert time.monotonic() < deadline, f"{self.namespace}: workers are of {of}"
            await asyncio.sleep(0.1)

    async def until_gone(self, limit_seconds: float = LIMIT_SECONDS) -> None:
        """The garbage collector learns of a new kind within half a minute."""
        deadline = time.monotonic() + limit_seconds
        try:
            while True:
                await self.show()
                assert time.monotonic() < deadline, f"{self.namespace}: {NAME} is still there"
                await asyncio.sleep(0.1)
        except aiohttp.ClientResponseError as error:
            if error.status != 404:
                raise

    async def end(self) -> Manifest:
        """The gist, once it has stood still for some intervals of the analysis: a worker that is going away, or was
        not yet read, is no part of how things end."""
        gist, since = await self.gist(), time.monotonic()
        deadline = since + LIMIT_SECONDS
        while time.monotonic() - since < STILL_SECONDS:
            await asyncio.sleep(0.25)
            if (now := await self.gist()) != gist:
                gist, since = now, time.monotonic()
            assert time.monotonic() < deadline, f"{self.namespace}: no rest in {LIMIT_SECONDS:g} s"
        return gist

    async def gist(self) -> Manifest:
        """Children and status without times, uids, figures and what is new in every namespace or life."""
        children: dict[str, list[Any]] = {
            plural: sorted(map(_plain, await self.items(plural)), key=str) for plural in CHILDREN
        }
        children["pods"] = sorted((p["labels"], p["phase"]) for p in children["pods"])
        children["configmaps"] = [c for c in children["configmaps"] if c["name"] != "kube-root-ca.crt"]
        status = (await self.show()).status
        return {
            **children,
            "stable": status.stable_revision,
            "canary": (status.canary_revision, status.weight),
            "quarantined": [(entry.revision, entry.reason, entry.spec) for entry in status.quarantined],
            "conditions": [(c.type, c.status, c.reason, c.observed_generation) for c in status.conditions],
            "validation": status.validation and (status.validation.key, status.validation.verdict),
            "replicas": (status.replicas, status.selector, status.observed_generation),
        }


_DROPPED = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "managedFields",
    "generation",
    "ownerReferences",
    "namespace",
)


def _plain(item: Manifest) -> Manifest:
    metadata = {key: value for key, value in item["metadata"].items() if key not in _DROPPED}
    labels = {k: v for k, v in metadata.get("labels", {}).items() if "uid" not in k and k != "pod-template-hash"}
    if "containers" in item.get("spec", {}):
        return {"labels": sorted(labels.items()), "phase": item["status"]["phase"]}
    body = {key: value for key, value in item.items() if key in ("spec", "revision")}
    text = re.sub(r"place-[0-9a-f]{8}|[0-9a-f]{8}-[0-9a-f-]{27}|10\.96\.\d+\.\d+", "", json.dumps(body, sort_keys=True))
    return {"name": metadata["name"], "labels": labels, "annotations": metadata.get("annotations", {}), "body": text}
