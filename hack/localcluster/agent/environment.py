"""What a container's process is told: environment, command line, and paths that exist on this machine.

There is no mount namespace and no network namespace here, so what a container would find at a mount path or bind at
0.0.0.0 must be named otherwise. `Translation` replaces, in command, arguments and values of variables, each mount
path by the real one and the address 0.0.0.0 by the pod's. Paths inside files are left alone.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from localcluster.agent.model import Container, EnvironmentVariable, FieldReference, Pod
from localcluster.images import PYTHON_PATH, inside


class ConfigError(Exception):
    """The container cannot be created as its spec says: CreateContainerConfigError."""


class Translation:
    def __init__(self, paths: Mapping[str, Path], pod_ip: str) -> None:
        self._paths = {path.rstrip("/"): str(real) for path, real in paths.items()}
        longest_first = sorted(self._paths, key=len, reverse=True)
        alternatives = "|".join(re.escape(path) for path in longest_first)
        # A mount path counts where a path begins and where one of its parts ends: /models, not /models2 or /x/models.
        self._pattern = re.compile(rf"(?<![\w./-])(?:{alternatives})(?![\w.-])") if alternatives else None
        self._pod_ip = pod_ip

    def __call__(self, text: str) -> str:
        if self._pattern:
            text = self._pattern.sub(lambda match: self._paths[match[0]], text)
        return re.sub(r"(?<![\d.])0\.0\.0\.0(?![\d.])", self._pod_ip, text)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Kubernetes' `$(NAME)`: an unknown name stays as it is, `$$(NAME)` is a literal `$(NAME)`."""

    def value(match: re.Match[str]) -> str:
        if match[0].startswith("$$"):
            return match[0][1:]
        return variables.get(match[1], match[0])

    return re.sub(r"\$?\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)", value, text)


def field_value(pod: Pod, reference: FieldReference, pod_ip: str, host_ip: str) -> str:
    """The downward API. Raises ConfigError for a field that it does not know."""
    path = reference.field_path
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        values = pod.metadata.labels if match[1] == "labels" else pod.metadata.annotations
        return values.get(match[2], "")
    if path in ("metadata.labels", "metadata.annotations"):  # in volumes only, as key="value" lines
        values = pod.metadata.labels if path == "metadata.labels" else pod.metadata.annotations
        return "\n".join(f'{key}="{value}"' for key, value in sorted(values.items()))
    known = {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.podIP": pod_ip,
        "status.podIPs": pod_ip,
        "status.hostIP": host_ip,
    }
    if path not in known:
        raise ConfigError(f"fieldRef {path} is not known to the local cluster's node agent")
    return known[path]


KeyLookup = Callable[[str, str], dict[str, str] | None]
"""(kind, name) -> texts of a ConfigMap or Secret of the pod's namespace, None if there is none."""


def variables(container: Container, lookup: KeyLookup, field: Callable[[FieldReference], str]) -> dict[str, str]:
    """`envFrom`, then `env` in order, each value seeing those before it. Raises ConfigError."""
    result: dict[str, str] = {}
    for source in container.env_from:
        for kind, reference in (("ConfigMap", source.config_map_ref), ("Secret", source.secret_ref)):
            if reference:
                texts = lookup(kind, reference.name)
                if texts is None and not reference.optional:
                    raise ConfigError(f'{kind.lower()} "{reference.name}" not found')
                result |= {source.prefix + key: text for key, text in (texts or {}).items()}
    for variable in container.env:
        value = _value(variable, lookup, field, result)
        if value is not None:
            result[variable.name] = value
    return result


def _value(
    variable: EnvironmentVariable,
    lookup: KeyLookup,
    field: Callable[[FieldReference], str],
    before: Mapping[str, str],
) -> str | None:
    source = variable.value_from
    if source is None:
        return expand(variable.value, before)
    if source.field_ref:
        return field(source.field_ref)
    for kind, reference in (("ConfigMap", source.config_map_key_ref), ("Secret", source.secret_key_ref)):
        if reference:
            texts = lookup(kind, reference.name)
            if texts is not None and reference.key in texts:
                return texts[reference.key]
            if reference.optional:
                return None
            problem = "not found" if texts is None else f'has no key "{reference.key}"'
            raise ConfigError(f'{kind.lower()} "{reference.name}" {problem}')
    raise ConfigError(f"variable {variable.name}: its valueFrom is not known to the local cluster's node agent")


def platform_variables(home: Path, temporary: Path, hostname: str) -> dict[str, str]:
    """What every process gets: enough to run this checkout, nothing of the caller's own environment."""
    path = [str(Path(sys.executable).parent), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    kept = {name: os.environ[name] for name in ("LANG", "LD_LIBRARY_PATH") if name in os.environ}
    return kept | {
        "PATH": ":".join(path),
        "PYTHONPATH": ":".join(PYTHON_PATH),
        "PYTHONUNBUFFERED": "1",
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "HOSTNAME": hostname,
    }


def command_line(
    container: Container, entry_point: Sequence[str], known: Mapping[str, str], translate: Callable[[str], str]
) -> list[str]:
    """`command` replaces the image's entry point, `args` follow; both with $(NAME) expanded and paths translated.

    The entry point itself is a path of this machine and stays as it is, wherever the pod mounts something.
    """
    command = inside(container.image, container.command) or [
        translate(expand(part, known)) for part in container.command
    ]
    return (command or list(entry_point)) + [translate(expand(part, known)) for part in container.args]
