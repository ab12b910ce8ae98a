"""The manifests of everything the operator creates, from plain data. Applied server-side under one field manager.

A worker Deployment is built from its recipe, never from the present spec, so an old revision can run again. What is in
the pods is in pods.py, the validation Job in validation_job.py.
"""

from __future__ import annotations

from tandem_operator import names
from tandem_operator.api import GROUP, KIND, VERSION, SpeculativeDeployment
from tandem_operator.api.recipe import Recipe
from tandem_operator.plan.observed import Manifest, Settings
from tandem_operator.plan.pods import Start, worker_pod
from tandem_operator.plan.revisions import deadline_seconds

SERVICE_PORT = 80


def metadata(resource: SpeculativeDeployment, name: str, labels: dict[str, str]) -> Manifest:
    owner = {  # no blockOwnerDeletion: it would need the right to update finalizers, and deletion must never wait
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": resource.metadata.name,
        "uid": resource.metadata.uid,
        "controller": True,
    }
    return {
        "name": name,
        "namespace": resource.metadata.namespace,
        "labels": {**names.common_labels(resource.metadata.name), **labels},
        "ownerReferences": [owner],
    }


def service(resource: SpeculativeDeployment, revision: str = "") -> Manifest:
    """One stable address; every ready worker of any revision is behind it, so shares are shares of replicas. With
    `revision`: of its workers alone, for a route to weigh."""
    name = resource.metadata.name
    only = {names.REVISION: revision} if revision else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(resource, names.child(name, revision) if revision else name, only),
        "spec": {
            "selector": {**names.worker_selector(name), **only},
            "ports": [
                {"name": names.PORT_NAME, "port": SERVICE_PORT, "targetPort": names.PORT_NAME, "protocol": "TCP"}
            ],
        },
    }


def worker_account(resource: SpeculativeDeployment) -> Manifest:
    """Their own, so that nothing granted to the namespace's default account reaches workers and Jobs."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(resource, names.worker_account(resource.metadata.name), {}),
        "automountServiceAccountToken": False,
    }


def disruption_budget(resource: SpeculativeDeployment) -> Manifest:
    """How many workers a drain of nodes may take at once; one, where a rollout may take none. Broken ones may always
    go."""
    name = resource.metadata.name
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(resource, name, {}),
        "spec": {
            "maxUnavailable": max(1, resource.spec.rollout.max_unavailable),
            "selector": {"matchLabels": names.worker_selector(name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def operator_key(resource: SpeculativeDeployment, settings: Settings) -> Manifest:
    """The public half only; the kubelet brings a new one to running pods without a restart."""
    name = resource.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(resource, names.operator_key(name), {}),
        "data": {names.KEY_FILE: settings.public_key_pem},
    }


def controller_revision(
    resource: SpeculativeDeployment, revision: str, number: int, recipe: Recipe, served: bool
) -> Manifest:
    """The record of a revision: its recipe, and whether it once was stable and so may be returned to."""
    name = resource.metadata.name
    about = metadata(resource, names.child(name, revision), {names.REVISION: revision})
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {**about, "annotations": {names.SERVED: "true" if served else "false"}},
        "revision": number,
        "data": recipe.model_dump(mode="json", by_alias=True, exclude_none=True),
    }


def deployment(
    resource: SpeculativeDeployment, revision: str, recipe: Recipe, replicas: int, start: Start | None = None
) -> Manifest:
    """The workers of one revision."""
    name = resource.metadata.name
    start = (start or Start()).of(recipe)
    rollout = resource.spec.rollout
    selector = {**names.worker_selector(name), names.REVISION: revision}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(resource, names.child(name, revision), {names.REVISION: revision}),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector},
            "progressDeadlineSeconds": deadline_seconds(resource.spec, recipe),
            # Within a revision only its start alters the template.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
            },
            "template": {
                "metadata": {
                    "labels": {**recipe.pod.labels, **names.common_labels(name), **selector},
                    "annotations": recipe.pod.annotations | start.annotations,
                },
                "spec": worker_pod(resource, revision, recipe, start),
            },
        },
    }


def fewer(resource: SpeculativeDeployment, revision: str, replicas: int) -> Manifest:
    """A Deployment of which nothing but the count is touched."""
    about = metadata(resource, names.child(resource.metadata.name, revision), {names.REVISION: revision})
    return {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": about, "spec": {"replicas": replicas}}
