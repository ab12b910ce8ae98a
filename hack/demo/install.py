"""A local cluster with Tandem in it: CRD, rights, the operator as a pod under its own service account, and a volume."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import yaml

from localcluster.cluster import Cluster, ClusterError
from tandem_operator.api import GROUP, PLURAL

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".demo"
"""Everything that a demo writes. It belongs to the checkout, so two checkouts do not meet."""

CLUSTERS = HOME / "clusters"
EXAMPLES = ROOT / "examples"
TINY_PAIR = EXAMPLES / "tiny-pair"
_OPERATOR = ("tandem-system", "tandem-operator")
_WAIT_SECONDS = 90
_WAIT = f"--timeout={_WAIT_SECONDS}s"
# Without a filter, which kubectl refuses where there are no conditions yet; types and statuses stand side by side.
_ESTABLISHED = "{range .status.conditions[*]}{.type}={.status} {end}"


def install(cluster: Cluster, allowed_host_paths: tuple[Path, ...] = ()) -> None:
    """Raises ClusterError with what kubectl said."""
    cluster.kubectl("apply", "--kustomize", str(ROOT / "crds"))
    _wait_until_served(cluster)
    documents = [with_host_paths(document, allowed_host_paths) for document in operator_manifests()]
    cluster.kubectl("apply", "--filename=-", stdin=_stream(documents))
    cluster.kubectl("rollout", "status", f"--namespace={_OPERATOR[0]}", f"deployment/{_OPERATOR[1]}", _WAIT)


def _wait_until_served(cluster: Cluster) -> None:
    """Not by `kubectl wait`: it fails on a CRD so new that it has no conditions at all."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while "Established=True" not in cluster.kubectl(
        "get", f"crd/{PLURAL}.{GROUP}", f"--output=jsonpath={_ESTABLISHED}"
    ):
        if time.monotonic() > deadline:
            raise ClusterError(f"CRD {PLURAL}.{GROUP} was not established in {_WAIT_SECONDS} s")
        time.sleep(0.2)


def operator_manifests() -> list[dict[str, Any]]:
    """All documents of deploy/, in the order of its kustomization: the namespace comes before what lives in it."""
    deploy = ROOT / "deploy"
    listed = yaml.safe_load((deploy / "kustomization.yaml").read_text())["resources"]
    files = [deploy / name for name in listed if name.endswith(".yaml")]  # the CRD's folder is applied before
    return [document for file in files for document in yaml.safe_load_all(file.read_text()) if document]


def with_host_paths(document: dict[str, Any], allowed: tuple[Path, ...]) -> dict[str, Any]:
    """The operator's Deployment with folders of this machine that hostPath sources may name; others as they are."""
    if document["kind"] != "Deployment" or not allowed:
        return document
    changed: dict[str, Any] = json.loads(json.dumps(document))
    for container in changed["spec"]["template"]["spec"]["containers"]:
        container["args"] = [*container.get("args", []), *(f"--allowed-host-path={path}" for path in allowed)]
    return changed


def provide_volume(cluster: Cluster, claim_name: str, folder: Path) -> None:
    """A claim in the namespace `default` whose volume is `folder` of this machine."""
    shared = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": claim_name},
        "spec": {**shared, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder), "type": "Directory"}},
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim_name, "namespace": "default"},
        "spec": {**shared, "volumeName": claim_name, "resources": {"requests": {"storage": "1Gi"}}},
    }
    cluster.kubectl("apply", "--filename=-", stdin=_stream([volume, claim]))


def prepare_checkpoints(folder: Path) -> None:
    """Target and drafters of the tiny pair, and `drafter-miswired`: the same weights, ids of another convention.

    The pair's own config lists layer ids as layer outputs, [1, 3, 4], which are capture indexes [2, 4, 5]. The copy
    lists the same numbers at top level, where the builtin engine reads them as capture indexes.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("target", "drafter", "drafter-foreign"):
        shutil.copytree(TINY_PAIR / name, folder / name)
    miswired = folder / "drafter-miswired"
    shutil.copytree(TINY_PAIR / "drafter", miswired)
    config = json.loads((miswired / "config.json").read_text())
    (miswired / "config.json").write_text(json.dumps(miswire(config), indent=2))


def miswire(config: dict[str, Any]) -> dict[str, Any]:
    """A drafter's config whose nested layer outputs became a top-level list, number for number."""
    nested = config["eagle_config"]
    others = {key: value for key, value in config.items() if key != "eagle_config"}
    return {**others, "eagle_aux_hidden_state_layer_ids": nested["eagle_aux_hidden_state_layer_ids"]}


def _stream(documents: list[dict[str, Any]]) -> str:
    return "---\n".join(json.dumps(document) + "\n" for document in documents)
