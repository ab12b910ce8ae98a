"""A server of external.metrics.k8s.io with one metric, behind the real API server's aggregation layer.

What a Prometheus adapter or KEDA's metrics server is to a HorizontalPodAutoscaler. The API server reaches it through a
Service of type ExternalName, which needs no endpoints.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cluster.operator_kit import Story
from localcluster.certificates import Authority

GROUP, VERSION, METRIC = "external.metrics.k8s.io", "v1beta1", "requests_waiting"
API = f"/apis/{GROUP}/{VERSION}"
SERVICE = f"{VERSION}.{GROUP}"


class ExternalMetrics(ThreadingHTTPServer):
    value = 0  # of METRIC, in any namespace

    @classmethod
    @contextmanager
    def served(cls, story: Story, folder: Path) -> Iterator[ExternalMetrics]:
        """One at a time in a cluster: the group is the whole cluster's."""
        Authority.create(folder).issue(folder, "metrics", [], [f"metrics.{story.namespace}.svc"])
        secured = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        secured.load_cert_chain(folder / "metrics.crt", folder / "metrics.key")
        with cls(("127.0.0.1", 0), _Handler) as server:
            server.socket = secured.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                server._register(story, base64.b64encode((folder / "ca.crt").read_bytes()).decode())
                yield server
            finally:  # an API that is registered and does not answer keeps namespaces from being deleted
                story.kubectl("delete", "apiservice", SERVICE, "--ignore-not-found")
                server.shutdown()

    def _register(self, story: Story, authority: str) -> None:
        port = self.server_address[1]
        story.apply_manifests(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "metrics"},
                "spec": {"type": "ExternalName", "externalName": "localhost"},
            },
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": SERVICE},
                "spec": {
                    "group": GROUP,
                    "version": VERSION,
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                    "caBundle": authority,
                    "service": {"name": "metrics", "namespace": story.namespace, "port": port},
                },
            },
        )
        story.kubectl("wait", f"apiservice/{SERVICE}", "--for=condition=Available", "--timeout=60s")


class _Handler(BaseHTTPRequestHandler):
    server: ExternalMetrics

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == API:
            verbs = {"name": METRIC, "kind": "ExternalMetricValueList", "namespaced": True, "verbs": ["get"]}
            self._answer({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP, "resources": [verbs]})
        elif path.startswith(f"{API}/namespaces/") and path.endswith(f"/{METRIC}"):
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            value = {"metricName": METRIC, "metricLabels": {}, "timestamp": now, "value": str(self.server.value)}
            kind = {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}}
            self._answer({**kind, "items": [value]})
        else:
            self.send_error(404)

    def _answer(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing."""
