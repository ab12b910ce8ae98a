"""`python -m localcluster.agent DIRECTORY NODE_ADDRESS`: started by the supervisor, ended by SIGTERM."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from kubernetes.aio import client

from localcluster.agent import logs, node
from localcluster.agent.api import Watched, connect
from localcluster.agent.container import ContainerRunner
from localcluster.agent.events import Recorder
from localcluster.agent.model import ConfigMap, Pod, Secret, Service
from localcluster.agent.pod import Node, PodRunner
from localcluster.agent.services import ServiceProxy
from localcluster.gpus import Allocator
from localcluster.settings import Layout, Settings


class Agent:
    def __init__(self, layout: Layout, address: str, api: client.ApiClient) -> None:
        self._layout = layout
        self._address = address
        self._network = address.removesuffix(".0.1")
        self._settings = Settings.model_validate_json(layout.settings.read_text())
        core = client.CoreV1Api(api)
        self._core = core
        self._coordination = client.CoordinationV1Api(api)
        self._runners: dict[str, PodRunner] = {}  # pod uid ->
        self._vanishing: set[asyncio.Task[None]] = set()
        self._address_count = 0
        mine = functools.partial(
            core.list_pod_for_all_namespaces_without_preload_content, field_selector=f"spec.nodeName={node.NODE}"
        )
        self._pods = Watched(mine, Pod, self._pod_changed)
        self._services = Watched(
            core.list_service_for_all_namespaces_without_preload_content, Service, lambda *_: self._proxy.changed.set()
        )
        self._config_maps = Watched(
            core.list_config_map_for_all_namespaces_without_preload_content, ConfigMap, self._files_changed
        )
        self._secrets = Watched(
            core.list_secret_for_all_namespaces_without_preload_content, Secret, self._files_changed
        )
        self._proxy = ServiceProxy(
            layout.services,
            self._network,
            lambda: list(self._services.objects.values()),
            lambda: list(self._pods.objects.values()),
        )
        self._node = Node(
            core=core,
            api_url=api.configuration.host,
            certificate_authority=layout.certificate_authority,
            settings=self._settings,
            address=address,
            pods_folder=layout.pods,
            recorder=Recorder(core, node.NODE),
            config_map=self._config_maps.get,
            secret=self._secrets.get,
            gpus=Allocator(self._settings.gpus, self._settings.gpu_shares),
        )

    async def run(self) -> None:
        """Until cancelled; then no process of any pod is left."""
        server = await logs.serve(self._address, self._layout.state, self._container)
        try:
            async with asyncio.TaskGroup() as tasks:
                await node.register(self._core, self._address, self._settings)
                tasks.create_task(node.keep_alive(self._coordination))
                everything: list[Watched[Any]] = [self._config_maps, self._secrets, self._services, self._pods]
                for watched in everything:  # pods last: they refer to the others
                    tasks.create_task(watched.run())
                    await watched.synced.wait()
                tasks.create_task(self._proxy.run())
                self._proxy.changed.set()
                self._layout.ready.touch()
        finally:
            for runner in self._runners.values():
                runner.kill()
            await server.cleanup()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old and (not new or new.metadata.uid != old.metadata.uid):
            self._vanish(old.metadata.uid)
        if new and new.metadata.uid in self._runners:
            self._runners[new.metadata.uid].update(new)
        elif new and not new.finished:
            self._runners[new.metadata.uid] = PodRunner(new, self._node, self._next_address())
        self._proxy.changed.set()

    def _vanish(self, uid: str) -> None:
        if runner := self._runners.pop(uid, None):
            task = asyncio.create_task(runner.vanish())
            self._vanishing.add(task)
            task.add_done_callback(self._vanishing.discard)

    def _files_changed(self, old: ConfigMap | Secret | None, new: ConfigMap | Secret | None) -> None:
        changed = new or old
        for runner in self._runners.values():
            if changed and runner.pod.metadata.namespace == changed.metadata.namespace:
                runner.volumes_changed.set()

    def _next_address(self) -> str:
        """A loopback address per pod, so that every pod can use the same port."""
        count = self._address_count
        self._address_count += 1
        return f"{self._network}.{1 + count // 254 % 127}.{count % 254 + 1}"

    def _container(self, namespace: str, pod: str, container: str) -> ContainerRunner | None:
        for runner in self._runners.values():
            if runner.pod.key == (namespace, pod):
                return runner.container(container)
        return None


async def main() -> None:
    layout, address = Layout(Path(sys.argv[1])), sys.argv[2]
    api = await connect(layout.agent_kubeconfig)
    task = asyncio.current_task()
    assert task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    agent = Agent(layout, address, api)
    try:
        await agent.run()
    except asyncio.CancelledError:
        pass
    finally:
        await api.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    asyncio.run(main())
