"""Writing children, and leaving alone those that are as they should be.

A manifest is applied when it is another than last time, or the child is not as that left it: what the store holds of it
tells. Of some kinds nothing is watched, for the right to read every ConfigMap is more than
an operator needs; they are applied again when pods come or go, which is when they matter, and every RENEW_SECONDS.

Of those that are watched a write is held to the version that is known. Otherwise a child that was just orphaned, by
`kubectl delete --cascade=orphan`, could be given back to the object that is gone, and be collected as garbage though it
is to go on serving (kubernetes #42639).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from kubernetes.aio import client

from tandem_operator import kube, names
from tandem_operator.api import SpeculativeDeployment
from tandem_operator.api.route import GATEWAY, GATEWAY_VERSION
from tandem_operator.plan.decision import Deletion
from tandem_operator.plan.observed import Manifest
from tandem_operator.queue import Key
from tandem_operator.store import CHILDREN, Kind, Store

APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
RENEW_SECONDS = 120.0
WATCHED = tuple(CHILDREN)
TRIES = 8  # against a writer who is as quick as we are
_OTHERS_NOTE = "deployment.kubernetes.io/"  # annotations of the Deployment controller


class _Applied(NamedTuple):
    """`mark`: of the child as the write left it; `until_seconds`: for kinds that are not watched."""

    digest: bytes
    mark: object
    until_seconds: float


class Changed(Exception):
    """A child is not as it was seen, and what that means must be planned anew."""


class Writer:
    def __init__(self, api: client.ApiClient, store: Store) -> None:
        core, apps, batch = client.CoreV1Api(api), client.AppsV1Api(api), client.BatchV1Api(api)
        policy = client.PolicyV1Api(api)
        self._api, self._store, self._core, self._apps = api, store, core, apps
        self._route = client.CustomObjectsApi(api).patch_namespaced_custom_object
        self._patch: dict[str, Callable[..., Awaitable[Any]]] = {
            "Service": core.patch_namespaced_service_without_preload_content,
            "ServiceAccount": core.patch_namespaced_service_account_without_preload_content,
            "ConfigMap": core.patch_namespaced_config_map_without_preload_content,
            "Deployment": apps.patch_namespaced_deployment_without_preload_content,
            "ControllerRevision": apps.patch_namespaced_controller_revision_without_preload_content,
            "PodDisruptionBudget": policy.patch_namespaced_pod_disruption_budget_without_preload_content,
            "Job": batch.patch_namespaced_job_without_preload_content,
        }
        self._applied: dict[Key, dict[tuple[str, str], _Applied]] = {}
        self._pods: dict[Key, frozenset[str]] = {}
        self._changed: set[Key] = set()  # whose children are others than before

    def seen(self, resource: SpeculativeDeployment, pods: frozenset[str]) -> None:
        """When pods (uids) have come or gone, or the object was made anew, what is not watched is applied again."""
        key = Key(resource.metadata.namespace, resource.metadata.name)
        there = pods | {resource.metadata.uid}
        if self._pods.get(key) != there:
            self._pods[key] = there
            known = self._applied.get(key, {})
            self._applied[key] = {child: done for child, done in known.items() if child[0] in WATCHED}

    def changed(self, key: Key) -> bool:
        """Since the last call: a write of ours made a child another than it was."""
        found = key in self._changed
        self._changed.discard(key)
        return found

    def forget(self, key: Key) -> None:
        self._applied.pop(key, None)
        self._pods.pop(key, None)

    def would_adopt(self, manifest: Manifest) -> bool:
        """The child is there and belongs to nobody."""
        kind, metadata = manifest["kind"], manifest["metadata"]
        known = self._store.meta(kind, metadata["namespace"], metadata["name"]) if kind in CHILDREN else None
        return known is not None and not any(owner.controller for owner in known.owner_references)

    async def apply(self, manifest: Manifest) -> str:
        """What the API server had against it, or an empty string. Raises Changed, and ApiException for what is not
        about the manifest."""
        kind, metadata = manifest["kind"], manifest["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        if kind == "HTTPRoute":
            return await self._try(kind, name, namespace, manifest)
        known = self._applied.setdefault(Key(namespace, metadata["labels"][names.NAME]), {})
        digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).digest()
        if (last := known.get((kind, name))) and last.digest == digest and self._holds(kind, namespace, name, last):
            return ""
        if problem := await self._try(kind, name, namespace, manifest):
            return problem
        until_seconds = _now() + RENEW_SECONDS * random.uniform(0.8, 1.2)
        known[kind, name] = _Applied(digest, self._mark(kind, namespace, name), until_seconds)
        return ""

    async def _try(self, kind: str, name: str, namespace: str, manifest: Manifest) -> str:
        try:
            await self._write(kind, name, namespace, manifest)
        except client.ApiException as error:
            # A field of the wrong type, or one that does not exist, is answered by server-side apply with 500.
            untyped = error.status == 500 and "failed to create typed patch object" in kube.words(error)
            if untyped or (error.status in (400, 403, 409, 422) and not (kind == "HTTPRoute" and error.status == 409)):
                return f"{kind} {name} was refused: {kube.words(error)}"
            raise
        return ""

    async def delete(self, namespace: str, deletion: Deletion) -> None:
        delete: dict[str, Callable[..., Awaitable[Any]]] = {
            "Deployment": self._apps.delete_namespaced_deployment,
            "Service": self._core.delete_namespaced_service,
            "ControllerRevision": self._apps.delete_namespaced_controller_revision,
        }
        try:
            await delete[deletion.kind](deletion.name, namespace, propagation_policy="Background")
        except client.ApiException as error:
            if error.status != 404:
                raise
        if meta := self._store.meta(deletion.kind, namespace, deletion.name):
            self._store.drop(CHILDREN[deletion.kind], {"metadata": meta.model_dump(mode="json", by_alias=True)})

    async def _write(self, kind: str, name: str, namespace: str, manifest: Manifest) -> None:
        how: dict[str, Any] = {"field_manager": names.FIELD_MANAGER}
        if kind == "Scale":  # not through the subresource, which would be one more right
            body, how["_content_type"] = {"spec": manifest["spec"]}, MERGE
            answer = await self._patch["Deployment"](name, namespace, body, **how)
        elif kind == "HTTPRoute":  # the user's: nothing but its rules, and only if nobody wrote it meanwhile
            at = (GATEWAY, GATEWAY_VERSION, namespace, "httproutes", name)
            await self._route(*at, manifest, **how, _content_type=MERGE)
            return
        else:
            answer = await self._held(kind, name, namespace, manifest)
        text = await answer.read()
        if answer.status >= 300:
            raise client.ApiException(status=answer.status, reason=answer.reason, body=text.decode(errors="replace"))
        stored = CHILDREN.get("Deployment" if kind == "Scale" else kind)
        if stored and (owner := self._store.put(stored, json.loads(text))):
            self._changed.add(owner)

    async def _held(self, kind: str, name: str, namespace: str, manifest: Manifest) -> Any:
        """Apply it, if the child is as it is known to be. Raises Changed."""
        how: dict[str, Any] = {"field_manager": names.FIELD_MANAGER, "force": True, "_content_type": APPLY}
        for _ in range(TRIES):
            known = self._store.meta(kind, namespace, name) if kind in CHILDREN else None
            version = {"resourceVersion": known.resource_version} if known else {}
            held = {**manifest, "metadata": {**manifest["metadata"], **version}}
            answer = await self._patch[kind](name, namespace, held, **how)
            if known is None or answer.status != 409:
                return answer
            await self._read_anew(CHILDREN[kind], namespace, name)
            if self.would_adopt(manifest):
                break
        raise Changed(f"{kind} {name}")

    async def _read_anew(self, kind: Kind, namespace: str, name: str) -> None:
        """A list of one, for which no other right is needed than the watch needs."""
        query = {"fieldSelector": f"metadata.name={name}"}
        found = await kube.page(self._api, kind.path_of_all(namespace), query)
        for body in found.items:
            self._store.put(kind, body)
        if not found.items and (known := self._store.meta(kind.name, namespace, name)):
            self._store.drop(kind, {"metadata": known.model_dump(mode="json", by_alias=True)})

    def _holds(self, kind: str, namespace: str, name: str, last: _Applied) -> bool:
        if kind in WATCHED:
            return last.mark is not None and self._mark(kind, namespace, name) == last.mark
        return _now() < last.until_seconds

    def _mark(self, kind: str, namespace: str, name: str) -> object:
        """What changes whenever somebody changes what we applied. The version of Deployments and Jobs moves with their
        status, too."""
        meta: kube.Meta | None = self._store.meta(kind, namespace, name) if kind in CHILDREN else None
        if meta is None or kind not in ("Deployment", "Job"):
            return meta and (meta.uid, meta.resource_version)
        annotations = tuple((k, v) for k, v in sorted(meta.annotations.items()) if not k.startswith(_OTHERS_NOTE))
        owners = tuple((owner.uid, owner.controller) for owner in meta.owner_references)
        return meta.uid, meta.generation, tuple(sorted(meta.labels.items())), annotations, owners


def _now() -> float:
    return asyncio.get_running_loop().time()
