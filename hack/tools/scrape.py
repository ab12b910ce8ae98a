"""A real Prometheus beside a local cluster, told what to scrape by the PodMonitors of the chart.

Debian builds Prometheus without the discovery of Kubernetes' pods. A thread plays it: it writes all pods, with the
labels that the discovery gives them, to a file that Prometheus watches; which are scraped is left to Prometheus.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from localcluster.cluster import Cluster
from localcluster.processes import dies_with_parent
from localcluster.settings import write_atomically
from tools.helm import helm
from tools.once import ToolError
from tools.prometheus import prometheus

CHART = Path(__file__).resolve().parents[2] / "helm" / "tandem"
RULES = CHART / "rules" / "tandem.yaml"
_READY_SECONDS, _LOOK_SECONDS = 30, 0.5
Manifest = dict[str, Any]


@dataclass(frozen=True)
class Series:
    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]  # unix seconds, value


@dataclass(frozen=True)
class Prometheus:
    url: str

    def instant(self, expr: str) -> list[Series]:
        """Raises ToolError with Prometheus' words."""
        found = self._get("query", query=expr)["result"]
        return [Series(item["metric"], ((item["value"][0], float(item["value"][1])),)) for item in found]

    def over(self, expr: str, start: float, end: float, step_seconds: float = 1) -> list[Series]:
        """Raises ToolError with Prometheus' words."""
        found = self._get("query_range", query=expr, start=start, end=end, step=step_seconds)["result"]
        return [Series(item["metric"], tuple((at, float(value)) for at, value in item["values"])) for item in found]

    def firing(self) -> list[dict[str, str]]:
        """Labels of the alerts that fire now."""
        return [alert["labels"] for alert in self._get("alerts")["alerts"] if alert["state"] == "firing"]

    def _get(self, what: str, **query: Any) -> Manifest:
        answer = httpx.get(f"{self.url}/api/v1/{what}", params=query, trust_env=False, timeout=30).json()
        if answer["status"] != "success":
            raise ToolError(f"Prometheus on {query}: {answer['error']}")
        data: Manifest = answer["data"]
        return data


@contextmanager
def scraped(cluster: Cluster, folder: Path, rules: Path = RULES, interval_seconds: int = 1) -> Iterator[Prometheus]:
    """While the block runs, Prometheus scrapes the operator and all workers of `cluster`; its data lie in `folder`.

    Raises ToolError when it does not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config, pods, port = folder / "prometheus.yaml", folder / "pods.json", _free_port()
    every = f"{interval_seconds}s"
    config.write_text(yaml.safe_dump({
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(rules)],
        "scrape_configs": [_job(monitor, pods) for monitor in _pod_monitors()],
    }))  # fmt: skip
    command = [
        str(prometheus()),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    log = folder / "prometheus.log"
    with (
        _discovery(cluster, pods),
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, preexec_fn=dies_with_parent()) as process,
    ):
        try:
            server = Prometheus(f"http://127.0.0.1:{port}")
            _wait_until_ready(server, process, log)
            yield server
        finally:
            process.terminate()


def _pod_monitors() -> list[Manifest]:
    rendered = helm(
        "template", "tandem", str(CHART), "--namespace=tandem-system", "--set=metrics.podMonitor.enabled=true"
    )
    return [document for document in yaml.safe_load_all(rendered) if document and document["kind"] == "PodMonitor"]


def _job(monitor: Manifest, pods: Path) -> Manifest:
    """What the Prometheus operator makes of a PodMonitor, as far as the chart's go."""
    spec = monitor["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    everywhere = spec.get("namespaceSelector", {}).get("any")
    kept = {
        **({} if everywhere else {"namespace": monitor["metadata"]["namespace"]}),
        **{f"pod_label_{_word(name)}": value for name, value in spec["selector"]["matchLabels"].items()},
        "pod_container_port_name": endpoint["port"],
    }
    named = {"namespace": "namespace", "pod_name": "pod"}
    own = endpoint.get("relabelings", [])
    return {
        "job_name": monitor["metadata"]["name"],
        "honor_labels": endpoint.get("honorLabels", False),
        "file_sd_configs": [{"files": [str(pods)]}],
        "relabel_configs": [
            *(
                {"source_labels": [f"__meta_kubernetes_{label}"], "regex": value, "action": "keep"}
                for label, value in kept.items()
            ),
            *(
                {
                    "source_labels": [f"__meta_kubernetes_{source}"],
                    "target_label": target,
                }
                for source, target in named.items()
            ),
            *({"source_labels": rule["sourceLabels"], "target_label": rule["targetLabel"]} for rule in own),
        ],
    }


@contextmanager
def _discovery(cluster: Cluster, file: Path) -> Iterator[None]:
    """Keeps `file` up to date while the block runs."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    server, token = config["clusters"][0]["cluster"], config["users"][0]["user"]["token"]
    trusted = ssl.create_default_context(cafile=server["certificate-authority"])
    over = threading.Event()

    def follow() -> None:
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=server["server"], verify=trusted, headers=headers, trust_env=False) as api:
            while not over.is_set():
                with suppress(httpx.TransportError):  # the cluster may end before the block does
                    pods = api.get("/api/v1/pods").json()["items"]
                    write_atomically(file, json.dumps([target for pod in pods for target in _targets(pod)]))
                over.wait(_LOOK_SECONDS)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _targets(pod: Manifest) -> Iterator[Manifest]:
    metadata, status = pod["metadata"], pod["status"]
    if status["phase"] != "Running" or "podIP" not in status:
        return
    labels = {f"pod_label_{_word(name)}": value for name, value in metadata.get("labels", {}).items()}
    about = {"namespace": metadata["namespace"], "pod_name": metadata["name"], **labels}
    for container in pod["spec"]["containers"]:
        for port in container.get("ports", []):
            named = about | {"pod_container_port_name": port.get("name", "")}
            yield {
                "targets": [f"{status['podIP']}:{port['containerPort']}"],
                "labels": {f"__meta_kubernetes_{name}": value for name, value in named.items()},
            }


def _word(label: str) -> str:
    return re.sub(r"\W", "_", label)


def _wait_until_ready(server: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{server.url}/-/ready", trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise ToolError(f"Prometheus did not start: {log.read_text()[-1000:]}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def filled_in(expr: str, window: str = "15s", **variables: str) -> str:
    """A dashboard's query with its variables replaced, `.*` where none is given, as Grafana does."""
    expr = expr.replace("$__rate_interval", window)
    return re.sub(r"\$(\w+)", lambda match: variables.get(match[1], ".*"), expr)


def changes(series: Sequence[Series]) -> bool:
    """Whether any of them comes, goes, or has more than one value."""
    return len({len(each.points) for each in series}) > 1 or any(len({v for _, v in s.points}) > 1 for s in series)
