"""One pod: volumes, init containers, containers, and the status that tells of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from localcluster import processes
from localcluster.agent.api import Hiccup, read
from localcluster.agent.container import ContainerRunner, Surroundings
from localcluster.agent.environment import ConfigError, Translation, field_value, platform_variables, variables
from localcluster.agent.events import Recorder
from localcluster.agent.model import Condition, ConfigMap, Container, FieldReference, Pod, Secret
from localcluster.agent.status import pod_status
from localcluster.agent.volumes import MountError, Volumes, keep_fresh
from localcluster.controlplane import kubeconfig
from localcluster.gpus import RESOURCE, Allocator, NoGpu
from localcluster.settings import Settings, write_atomically

log = logging.getLogger(__name__)

_ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
_RETRY_SECONDS = 0.3


@dataclass(frozen=True)
class Node:
    """What every pod needs of its node."""

    core: client.CoreV1Api
    api_url: str
    certificate_authority: Path
    settings: Settings
    address: str
    pods_folder: Path
    recorder: Recorder
    config_map: Callable[[str, str], ConfigMap | None]
    secret: Callable[[str, str], Secret | None]
    gpus: Allocator


class PodRunner:
    """Runs a pod from the moment it is bound to the node until its object is gone."""

    def __init__(self, pod: Pod, node: Node, address: str) -> None:
        self.pod = pod
        self.address = node.address if pod.spec.host_network else address
        self.volumes_changed = asyncio.Event()
        self._node = node
        self._folder = node.pods_folder / pod.metadata.uid
        self._started_at = datetime.now(UTC)
        self._conditions: list[Condition] = pod.status.conditions
        self._dirty = asyncio.Event()
        self._writing = asyncio.Lock()
        self._written: dict[str, Any] = {}
        self._gone = False
        self._volumes = Volumes(
            pod, self._folder / "volumes", node.core, node.config_map, node.secret, self._field_value
        )
        self._init = [self._runner(container, is_init=True) for container in pod.spec.init_containers]
        self._main = [self._runner(container) for container in pod.spec.containers]
        self._publishing = asyncio.create_task(self._publish_changes())
        self._running = asyncio.create_task(self._run())
        self._terminating: asyncio.Task[None] | None = None
        if pod.metadata.deletion_timestamp:
            self.update(pod)

    def container(self, name: str) -> ContainerRunner | None:
        return next((runner for runner in self._init + self._main if runner.container.name == name), None)

    def update(self, pod: Pod) -> None:
        """The object has changed."""
        self.pod = pod
        self.volumes_changed.set()  # labels and annotations may be files
        if pod.metadata.deletion_timestamp and not self._terminating:
            self._terminating = asyncio.create_task(self._terminate())
        self._dirty.set()  # readiness gates may have changed

    def kill(self) -> None:
        """At once, without a word to the API server."""
        self._gone = True
        for runner in self._init + self._main:
            runner.kill()
        processes.kill_all([processes.pod_marker(self.pod.metadata.uid)])

    async def vanish(self) -> None:
        """The object is gone: nothing of the pod may remain."""
        self.kill()
        await self._running
        self._publishing.cancel()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    # --- life ---

    async def _run(self) -> None:
        refreshing: asyncio.Task[None] | None = None
        try:
            if await self._mounted():
                refreshing = asyncio.create_task(keep_fresh(self._volumes, self.volumes_changed, self._mount_failed))
                if await self._initialised():
                    await asyncio.gather(*(runner.run() for runner in self._main))
        except Exception:
            log.exception("pod %s", self.pod.key)
        finally:
            if refreshing:
                refreshing.cancel()
            self._node.gpus.release(self.pod.metadata.uid)
            self._dirty.set()

    async def _mounted(self) -> bool:
        complaint = ""
        while not self._ending():
            try:
                await self._volumes.mount()
            except MountError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    self._mount_failed(complaint)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.volumes_changed.wait(), 1)
                self.volumes_changed.clear()
            except Hiccup as error:
                log.info("mounting volumes of %s: %s", self.pod.key, error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return True
        return False

    async def _initialised(self) -> bool:
        for runner in self._init:
            await runner.run()
            if not runner.succeeded:
                return False
        return not self._ending()

    def _ending(self) -> bool:
        return self._gone or self.pod.metadata.deletion_timestamp is not None

    async def _terminate(self) -> None:
        grace = self.pod.metadata.deletion_grace_period_seconds
        if grace is None:
            grace = self.pod.spec.termination_grace_period_seconds
        await asyncio.gather(*(runner.stop(grace) for runner in self._init + self._main))
        await self._running
        processes.kill_all([processes.pod_marker(self.pod.metadata.uid)])
        metadata = self.pod.metadata
        options: Any = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata.uid}}
        delete = self._node.core.delete_namespaced_pod_without_preload_content
        while not self._gone:
            try:
                await self._publish()
                await read(delete(metadata.name, metadata.namespace, body=options))
                return
            except ApiException as error:
                if error.status in (404, 409):  # gone, or another of the same name
                    return
            except Hiccup:
                pass
            await asyncio.sleep(_RETRY_SECONDS)

    # --- what the containers are told ---

    def _runner(self, container: Container, is_init: bool = False) -> ContainerRunner:
        spec, folder = self.pod.spec, self._folder / "containers" / container.name
        policy = spec.restart_policy
        if is_init and policy == "Always":
            policy = "OnFailure"
        around = Surroundings(
            settings=self._node.settings,
            folder=folder,
            pod_ip=self.address,
            restart_policy=policy,
            grace_seconds=spec.termination_grace_period_seconds,
            variables=lambda container: variables(container, self._texts, self._field_value),
            platform=lambda container: self._platform(container, folder),
            translation=lambda container: self._translation(container, folder / "termination-log"),
            changed=self._dirty.set,
            event=lambda kind, reason, message: self._node.recorder.record(self.pod, kind, reason, message),
        )
        return ContainerRunner(container, around, is_init)

    def _translation(self, container: Container, termination_file: Path) -> Translation:
        paths = {mount.mount_path: self._volumes.path(mount) for mount in container.volume_mounts}
        return Translation(paths | {container.termination_message_path: termination_file}, self.address)

    def _platform(self, container: Container, folder: Path) -> dict[str, str]:
        result = platform_variables(folder / "home", folder / "tmp", self.pod.metadata.name)
        markers = (processes.pod_marker(self.pod.metadata.uid), processes.cluster_marker(self._node.pods_folder.parent))
        for marker in markers:
            name, _, value = marker.partition("=")
            result[name] = value
        result |= self._gpus(container)
        for mount in container.volume_mounts:
            if mount.mount_path == _ACCOUNT_FOLDER:
                result["KUBECONFIG"] = str(self._write_kubeconfig(self._volumes.path(mount)))
        return result

    def _gpus(self, container: Container) -> dict[str, str]:
        wanted = int(container.resources.limits.get(RESOURCE, "0"))
        try:
            return self._node.gpus.environment(self.pod.metadata.uid, container.name, wanted)
        except NoGpu as error:
            raise ConfigError(str(error)) from error

    def _write_kubeconfig(self, account: Path) -> Path:
        """For a client in the pod: /var/run/secrets cannot exist here, where it would look first."""
        path = self._folder / "kubeconfig"
        user = {"tokenFile": str(account / "token")}
        authority = self._node.certificate_authority
        write_atomically(path, kubeconfig(self._node.api_url, authority, user, self.pod.metadata.namespace))
        return path

    def _texts(self, kind: str, name: str) -> dict[str, str] | None:
        lookup = self._node.config_map if kind == "ConfigMap" else self._node.secret
        found = lookup(self.pod.metadata.namespace, name)
        return {key: data.decode(errors="replace") for key, data in found.files().items()} if found else None

    def _field_value(self, reference: FieldReference) -> str:
        return field_value(self.pod, reference, self.address, self._node.address)

    def _mount_failed(self, message: str) -> None:
        self._node.recorder.record(self.pod, "Warning", "FailedMount", f"MountVolume.SetUp failed: {message}")

    # --- status ---

    async def _publish_changes(self) -> None:
        self._dirty.set()
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._publish()
            except ApiException as error:
                if error.status not in (404, 409):
                    await self._try_again(error)
            except Hiccup as error:
                await self._try_again(error)

    async def _try_again(self, error: BaseException) -> None:
        log.info("status of %s: %s", self.pod.key, str(error)[:200])
        await asyncio.sleep(_RETRY_SECONDS)
        self._dirty.set()

    async def _publish(self) -> None:
        """Write the status if it is another. Raises what the API server or the way to it raises."""
        async with self._writing:
            status = self._status()
            if status != self._written:
                await self._write(status)

    def _status(self) -> dict[str, Any]:
        return pod_status(
            self.pod,
            [runner.report() for runner in self._init],
            [runner.report() for runner in self._main],
            pod_ip=self.address,
            host_ip=self._node.address,
            started_at=self._started_at,
            now=datetime.now(UTC),
            before=self._conditions,
        )

    async def _write(self, status: dict[str, Any]) -> None:
        metadata = self.pod.metadata
        patch = {"metadata": {"uid": metadata.uid}, "status": status}
        await read(
            self._node.core.patch_namespaced_pod_status_without_preload_content(
                metadata.name, metadata.namespace, patch, _content_type="application/strategic-merge-patch+json"
            )
        )
        self._conditions = [
            Condition.model_validate({key: value for key, value in condition.items() if value is not None})
            for condition in status["conditions"]
        ]
        self._written = status
