"""Services, as kube-proxy would do it with a kernel: one listener per port, a random ready pod per connection.

Each Service has a loopback address of its own and is served there at its own port, or, where that port cannot be
bound (below 1024 without the right, taken by someone who listens on all addresses), at a free one. The listener is
there only while a pod is ready, so that clients are refused otherwise; connections that exist go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from localcluster.agent.model import Pod, Service, ServicePort
from localcluster.settings import ServiceAddress, ServiceTable, write_atomically

log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 16
_CONNECT_SECONDS = 5

Endpoint = tuple[str, int]


def endpoints(service: Service, port: ServicePort, pods: Iterable[Pod]) -> list[Endpoint]:
    """Addresses of the pods that take connections for this port now."""
    selector = service.spec.selector.items()
    found = []
    for pod in pods:
        serves = pod.status.is_true("Ready") or service.spec.publish_not_ready_addresses
        mine = pod.metadata.namespace == service.metadata.namespace and selector <= pod.metadata.labels.items()
        if mine and serves and pod.status.pod_ip and not pod.metadata.deletion_timestamp and not pod.finished:
            numbers = (container.port_number(port.target_port or port.port) for container in pod.spec.containers)
            number = next((number for number in numbers if number), None)
            if number:
                found.append((pod.status.pod_ip, number))
    return found


def is_served(service: Service) -> bool:
    """Headless, external and selector-less Services have no listener."""
    spec = service.spec
    return bool(spec.selector) and spec.cluster_ip != "None" and spec.type != "ExternalName"


def bindable_port(host: str, wanted: int) -> int:
    """The wanted port if it can be bound on this address, else a free one."""
    for port in (wanted, 0):
        with contextlib.suppress(OSError), socket.create_server((host, port)) as probe:
            number: int = probe.getsockname()[1]
            return number
    raise OSError(f"no port of {host} can be bound")


@dataclass
class Listener:
    host: str
    local_port: int
    endpoints: list[Endpoint] = field(default_factory=list)
    server: asyncio.Server | None = None

    async def set_endpoints(self, endpoints: list[Endpoint]) -> None:
        self.endpoints = endpoints
        if endpoints and not self.server:
            self.server = await asyncio.start_server(self._serve, self.host, self.local_port)
        elif not endpoints and self.server:
            self.close()

    def close(self) -> None:
        """No new connections; those that exist go on."""
        if self.server:
            self.server.close()
            self.server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            host, port = random.choice(self.endpoints)
            pod_reader, pod_writer = await asyncio.wait_for(asyncio.open_connection(host, port), _CONNECT_SECONDS)
        except (OSError, TimeoutError, IndexError):
            writer.transport.abort()
            return
        try:
            await asyncio.gather(_copy(reader, pod_writer), _copy(pod_reader, writer))
        finally:
            writer.close()
            pod_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the sender is done; a broken side breaks the other."""
    try:
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except (OSError, RuntimeError):
        writer.transport.abort()


class ServiceProxy:
    """Keeps listeners and the table in step with Services and pods."""

    def __init__(self, table: Path, network: str, services: Callable[[], list[Service]], pods: Callable[[], list[Pod]]):
        self.changed = asyncio.Event()
        self._table = table
        self._network = network  # `127.65`
        self._services = services
        self._pods = pods
        self._hosts: dict[str, str] = {}  # Service uid -> address
        self._count = 0
        self._listeners: dict[tuple[str, int], Listener] = {}

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.changed.wait()
            self.changed.clear()
            await self._reconcile()

    async def _reconcile(self) -> None:
        services = [service for service in self._services() if is_served(service)]
        pods = self._pods()
        rows, wanted = [], set()
        for service in services:
            for port in service.spec.ports:
                if port.protocol != "TCP":
                    continue
                key = (service.metadata.uid, port.port)
                wanted.add(key)
                if key not in self._listeners:
                    host = self._host(service.metadata.uid)
                    self._listeners[key] = Listener(host, bindable_port(host, port.port))
                listener = self._listeners[key]
                try:
                    await listener.set_endpoints(endpoints(service, port, pods))
                except OSError as error:  # someone took the port meanwhile; the next change tries again
                    log.warning("%s: %s", service.key, error)
                rows.append(_row(service, port, listener))
        for key in self._listeners.keys() - wanted:
            self._listeners.pop(key).close()
        write_atomically(self._table, ServiceTable(services=tuple(rows)).model_dump_json())

    def _host(self, uid: str) -> str:
        if uid not in self._hosts:
            self._hosts[uid] = f"{self._network}.{128 + self._count // 254 % 127}.{self._count % 254 + 1}"
            self._count += 1
        return self._hosts[uid]


def _row(service: Service, port: ServicePort, listener: Listener) -> ServiceAddress:
    return ServiceAddress(
        namespace=service.metadata.namespace,
        name=service.metadata.name,
        port=port.port,
        port_name=port.name,
        host=listener.host,
        local_port=listener.local_port,
    )
