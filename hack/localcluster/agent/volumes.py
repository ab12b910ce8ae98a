"""Volumes: where each lies on this machine, and the files of those that are made of API objects.

ConfigMaps, Secrets, the downward API and tokens become files as a kubelet writes them: a new folder per version, and
one symbolic link `..data` that is switched in a single step, so that a reader never sees half an update.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from localcluster.agent.api import read
from localcluster.agent.model import (
    Claim,
    ConfigMap,
    FieldReference,
    HostPath,
    KeyToPath,
    Mount,
    PersistentVolume,
    Pod,
    Projection,
    Secret,
    ServiceAccountToken,
    Volume,
)

_TOKEN_USED_FRACTION = 0.8  # of its life, after which a kubelet asks for a new one


class MountError(Exception):
    """A volume cannot be had (yet): FailedMount."""


class Volumes:
    """All volumes of one pod under `folder`."""

    def __init__(
        self,
        pod: Pod,
        folder: Path,
        core: client.CoreV1Api,
        config_map: Callable[[str, str], ConfigMap | None],
        secret: Callable[[str, str], Secret | None],
        field: Callable[[FieldReference], str],
    ) -> None:
        self.pod = pod
        self._folder = folder
        self._core = core
        self._config_map = config_map
        self._secret = secret
        self._field = field
        self._paths: dict[str, Path] = {}
        self._tokens: dict[ServiceAccountToken, tuple[bytes, float]] = {}  # token, time to ask for the next

    async def mount(self) -> None:
        """Make every volume. Raises MountError; may be called again."""
        for volume in self.pod.spec.volumes:
            self._paths[volume.name] = await self._mount(volume)

    async def refresh(self) -> None:
        """Write anew what changed: ConfigMaps, Secrets, labels, tokens. Raises MountError."""
        for volume in self.pod.spec.volumes:
            if projections := volume.projections():
                write_files(self._paths[volume.name], await self._files(projections))

    def seconds_until_refresh(self) -> float | None:
        """Until a token must be renewed; None if there is none."""
        times = [renewal for _, renewal in self._tokens.values()]
        return max(1.0, min(times) - time.time()) if times else None

    def path(self, mount: Mount) -> Path:
        """Where a container's mount lies."""
        path = self._paths[mount.name]
        if mount.sub_path:
            path = path / mount.sub_path
            if not path.exists():
                path.mkdir(parents=True)
        return path

    async def _mount(self, volume: Volume) -> Path:
        own = self._folder / volume.name
        if volume.host_path:
            return _host_path(volume.host_path)
        if volume.persistent_volume_claim:
            return await self._claimed(volume.persistent_volume_claim.claim_name)
        own.mkdir(parents=True, exist_ok=True)
        if projections := volume.projections():
            write_files(own, await self._files(projections))
        elif volume.empty_dir is None and not (volume.config_map or volume.secret or volume.projected):
            raise MountError(f'volume "{volume.name}": its type is not known to the local cluster\'s node agent')
        return own

    async def _claimed(self, name: str) -> Path:
        namespace = self.pod.metadata.namespace
        try:
            answer = await read(
                self._core.read_namespaced_persistent_volume_claim_without_preload_content(name, namespace)
            )
            claim = Claim.model_validate_json(answer)
            if not claim.spec.volume_name:
                raise MountError(f'claim "{name}" is not bound')
            answer = await read(self._core.read_persistent_volume_without_preload_content(claim.spec.volume_name))
        except ApiException as error:
            raise MountError(f'claim "{name}": {error.reason}') from error
        volume = PersistentVolume.model_validate_json(answer)
        if volume.spec.host_path:
            return _host_path(volume.spec.host_path)
        if volume.spec.local:
            return _host_path(HostPath(path=volume.spec.local.path, type="Directory"))
        raise MountError(f'claim "{name}": PersistentVolume {volume.metadata.name} is neither hostPath nor local')

    async def _files(self, projections: Sequence[Projection]) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        namespace = self.pod.metadata.namespace
        for source in projections:
            if wanted := source.config_map:
                found = self._config_map(namespace, wanted.name)
                files |= _select("configmap", wanted.name, found, wanted.items, wanted.optional)
            if secret := source.secret:
                name = secret.secret_name or secret.name
                files |= _select("secret", name, self._secret(namespace, name), secret.items, secret.optional)
            if downward := source.downward_api:
                for item in downward.items:
                    files[item.path] = self._field(item.field_ref).encode() if item.field_ref else b""
            if token := source.service_account_token:
                files[token.path] = await self._token(token)
        return files

    async def _token(self, wanted: ServiceAccountToken) -> bytes:
        known = self._tokens.get(wanted)
        if known and time.time() < known[1]:
            return known[0]
        metadata = self.pod.metadata
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata.name, "uid": metadata.uid}
        request: Any = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [wanted.audience] if wanted.audience else [],
                "expirationSeconds": wanted.expiration_seconds,
                "boundObjectRef": bound,
            },
        }
        account = self.pod.spec.service_account_name
        create = self._core.create_namespaced_service_account_token_without_preload_content
        try:
            answer = json.loads(await read(create(account, metadata.namespace, request)))
        except ApiException as error:
            raise MountError(f'token of serviceaccount "{account}": {error.reason}') from error
        token = answer["status"]["token"].encode()
        self._tokens[wanted] = (token, time.time() + _TOKEN_USED_FRACTION * wanted.expiration_seconds)
        return bytes(token)


def _select(
    kind: str, name: str, found: ConfigMap | Secret | None, items: Sequence[KeyToPath], optional: bool
) -> dict[str, bytes]:
    if found is None:
        if optional:
            return {}
        raise MountError(f'{kind} "{name}" not found')
    files = found.files()
    if not items:
        return files
    missing = [item.key for item in items if item.key not in files]
    if missing and not optional:
        raise MountError(f'{kind} "{name}" has no key {", ".join(missing)}')
    return {item.path: files[item.key] for item in items if item.key in files}


def _host_path(wanted: HostPath) -> Path:
    path = Path(wanted.path)
    if wanted.type == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif wanted.type == "FileOrCreate":
        path.touch()
    if not path.exists() and wanted.type:
        raise MountError(f"hostPath {path} does not exist")
    if wanted.type == "Directory" and not path.is_dir():
        raise MountError(f"hostPath {path} is not a directory")
    return path


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Make `folder` hold exactly these files (name may contain slashes), switched over in one step."""
    data = folder / "..data"
    if data.exists() and {name: (data / name).read_bytes() for name in _names(data)} == files:
        return
    version = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    for name, content in files.items():
        (version / name).parent.mkdir(parents=True, exist_ok=True)
        (version / name).write_bytes(content)
    old = data.resolve() if data.is_symlink() else None
    link = folder / "..data_new"
    link.symlink_to(version.name)
    os.replace(link, data)
    tops = {Path(name).parts[0] for name in files}
    for stale in [entry for entry in folder.iterdir() if not entry.name.startswith("..") and entry.name not in tops]:
        stale.unlink()
    for top in tops:
        if not (folder / top).is_symlink():
            (folder / top).symlink_to(Path("..data") / top)
    if old:
        shutil.rmtree(old, ignore_errors=True)


def _names(data: Path) -> list[str]:
    return [str(path.relative_to(data)) for path in data.rglob("*") if path.is_file()]


async def keep_fresh(volumes: Volumes, changed: asyncio.Event, complain: Callable[[str], None]) -> None:
    """Refresh at each change and whenever a token nears its end. For ever."""
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), volumes.seconds_until_refresh())
        changed.clear()
        try:
            await volumes.refresh()
        except MountError as error:
            complain(str(error))
            await asyncio.sleep(1)
