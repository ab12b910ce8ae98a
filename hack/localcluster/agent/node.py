"""The Node object and its Lease."""

from __future__ import annotations

import asyncio
import logging
import platform
from datetime import UTC, datetime
from typing import Any

from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from localcluster.agent import logs
from localcluster.agent.api import Hiccup, read, timestamp
from localcluster.build import KUBERNETES_VERSION
from localcluster.gpus import RESOURCE, labels
from localcluster.settings import Settings

log = logging.getLogger(__name__)

NODE = "local"
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_RENEW_SECONDS = 10
_RETRY_SECONDS = 0.1


async def register(core: client.CoreV1Api, address: str, settings: Settings) -> None:
    """Create the node and say that it is ready, however long the API server takes to come up."""
    node: Any = {"metadata": {"name": NODE, "labels": _labels() | labels(settings.gpus, settings.gpu_shares)}}
    status = {"status": _status(address, settings.offered_gpus), "spec": {"taints": []}}
    while True:
        try:
            try:
                await read(core.create_node_without_preload_content(node))
            except ApiException as error:
                if error.status != 409:
                    raise
            await read(core.patch_node_status_without_preload_content(NODE, status))
            # A new node is tainted until a controller has looked at it; the agent knows that it is ready.
            taints = {"spec": {"taints": None}}
            await read(
                core.patch_node_without_preload_content(
                    NODE, taints, _content_type="application/strategic-merge-patch+json"
                )
            )
            return
        except Hiccup:
            await asyncio.sleep(_RETRY_SECONDS)


async def keep_alive(coordination: client.CoordinationV1Api) -> None:
    """Renew the node's Lease. For ever."""
    namespace = "kube-node-lease"
    while True:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": NODE, "leaseDurationSeconds": 40, "renewTime": now}
        lease: Any = {"metadata": {"name": NODE, "namespace": namespace}, "spec": spec}
        try:
            try:
                await read(coordination.patch_namespaced_lease_without_preload_content(NODE, namespace, {"spec": spec}))
            except ApiException as error:
                if error.status != 404:
                    raise
                await read(coordination.create_namespaced_lease_without_preload_content(namespace, lease))
        except Hiccup as error:
            log.info("renewing the lease: %s", str(error)[:200])
            await asyncio.sleep(1)
        else:
            await asyncio.sleep(_RENEW_SECONDS)


def _labels() -> dict[str, str]:
    return {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux", "kubernetes.io/arch": _ARCHITECTURE}


def _status(address: str, gpus: int) -> dict[str, Any]:
    # Generous and fixed, as nothing is enforced: what a pod asks for shall not depend on the machine at hand.
    capacity = {"cpu": "64", "memory": "256Gi", "pods": "250", RESOURCE: str(gpus)}
    now = timestamp()
    healthy = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    conditions = [
        {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "the node agent runs"} | healthy,
        {"type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory"} | healthy,
        {"type": "DiskPressure", "status": "False", "reason": "KubeletHasNoDiskPressure"} | healthy,
        {"type": "PIDPressure", "status": "False", "reason": "KubeletHasSufficientPID"} | healthy,
    ]
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": NODE}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": logs.PORT}},
        "conditions": conditions,
        "nodeInfo": {
            "machineID": "",
            "systemUUID": "",
            "bootID": "",
            "kernelVersion": "",
            "osImage": "processes of this machine",
            "containerRuntimeVersion": "process://1",
            "kubeletVersion": KUBERNETES_VERSION,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": _ARCHITECTURE,
        },
    }
