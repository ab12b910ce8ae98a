"""The chart as helm renders it: strict values, each of which does something, and the files that are made from it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.manifests import manifests
from chart.readme import readme, values
from tandem_worker import __version__
from tools.helm import helm
from tools.once import ToolError

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "tandem"
DIGEST = "sha256:" + "ab" * 32
Manifest = dict[str, Any]


def render(**settings: Any) -> list[Manifest]:
    """Documents with these values set by their dotted names, `__` for a dot. Raises ToolError with helm's words."""
    return rendered(tuple(f"--set-json={name.replace('__', '.')}={json.dumps(v)}" for name, v in settings.items()))


@cache
def rendered(arguments: tuple[str, ...]) -> list[Manifest]:
    text = helm("template", "tandem", str(CHART), "--namespace=tandem-system", *arguments)
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def only(documents: list[Manifest], kind: str, name: str = "") -> Manifest:
    (found,) = [d for d in documents if d["kind"] == kind and name in ("", d["metadata"]["name"])]
    return found


def container(documents: list[Manifest]) -> Manifest:
    (found,) = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_helm_finds_nothing_amiss() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


def test_chart_and_program_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_readme_and_plain_manifests_are_what_the_chart_says() -> None:
    assert (CHART / "README.md").read_text() == readme(CHART), "run make chart"
    made = manifests(CHART)
    assert {file.name: file.read_text() for file in (ROOT / "deploy").iterdir()} == made, "run make chart"


NOT_DEFAULT: dict[str, Any] = {
    "image.repository": "registry.example/operator",
    "image.tag": "v9",
    "image.digest": DIGEST,
    "image.pullPolicy": "Always",
    "worker.image.repository": "registry.example/worker",
    "worker.image.tag": "v9",
    "worker.image.digest": DIGEST,
    "imagePullSecrets": [{"name": "pull"}],
    "allowedHostPaths": ["/models"],
    "logLevel": "DEBUG",
    "rbac.aggregateRoles": False,
    "serviceAccount.create": False,
    "serviceAccount.name": "mine",
    "serviceAccount.annotations": {"a": "b"},
    "resources": {"limits": {"memory": "1Gi"}},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "podLabels": {"team": "a"},
    "podAnnotations": {"a": "b"},
    "priorityClassName": "system-cluster-critical",
    "crds.install": False,
    "crds.keep": False,
    "metrics.podMonitor.enabled": True,
    "metrics.podMonitor.labels": {"release": "prometheus"},
    "metrics.podMonitor.interval": "7s",
    "metrics.rules.enabled": True,
    "metrics.rules.labels": {"release": "prometheus"},
    "metrics.rules.runbookUrl": "https://runbooks.example",
    "metrics.dashboards.enabled": True,
    "metrics.dashboards.labels": {"folder": "llm"},
    "networkPolicy.enabled": True,
    "networkPolicy.apiServerPorts": [16443],
    "networkPolicy.workerNamespaces": ["team-a"],
    "networkPolicy.workerEgress": [{"ports": [{"port": 443}]}],
}
SWITCHED_ON = {f"metrics__{part}__enabled": True for part in ("podMonitor", "rules", "dashboards")}
POLICIES = {"networkPolicy__enabled": True, "networkPolicy__workerNamespaces": ["models"]}


@pytest.mark.parametrize("name", NOT_DEFAULT)
def test_every_value_does_something(name: str) -> None:
    base: dict[str, Any] = SWITCHED_ON if name.startswith("metrics") else POLICIES if name.startswith("network") else {}
    base = {} if name.endswith(".enabled") else base
    assert render(**base | {name.replace(".", "__"): NOT_DEFAULT[name]}) != render(**base)


def test_no_value_is_left_untried() -> None:
    scope = {"rbac.scope", "rbac.namespaces"}  # below
    assert {value.name for value in values(CHART)} - scope == set(NOT_DEFAULT)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("replicas", 2),
        ("image__repo", "x"),
        ("image__digest", "sha256:ab"),
        ("image__pullPolicy", "Sometimes"),
        ("worker__images", {}),
        ("rbac__scope", "namespaced"),
        ("rbac__scope", "namespaces"),  # and none is listed
        ("rbac__namespaces", ["team-a"]),  # with the scope of a cluster
        ("allowedHostPaths", ["models"]),
        ("metrics__podMonitor__interval", "fast"),
        ("metrics__serviceMonitor", {"enabled": True}),
        ("networkPolicy__egress", []),
        ("networkPolicy__apiServerPorts", []),
        ("networkPolicy__apiServerPorts", ["https"]),
        ("serviceAccount__name", "My_Account"),
        ("imagePullSecrets", [{"name": "Registry"}]),
        ("crds__keep", "yes"),
    ],
)
def test_values_that_mean_nothing_are_refused(setting: str, value: Any) -> None:
    with pytest.raises(ToolError, match="values don't meet the specifications of the schema"):
        render(**{setting: value})


def test_names_that_look_like_numbers_stay_names() -> None:
    """The API server refuses a number in their place."""
    switches = ["metrics.podMonitor.enabled", "metrics.rules.enabled", "metrics.dashboards.enabled"]
    arguments = [f"--set={name}=true" for name in (*switches, "networkPolicy.enabled")]
    spaces = ["--set=rbac.scope=namespaces", '--set-json=rbac.namespaces=["2025"]']
    text = helm("template", "123", str(CHART), "--namespace=2024", *arguments, *spaces)
    documents = [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]
    assert {d["metadata"]["namespace"] for d in documents if "namespace" in d["metadata"]} == {"2024", "2025"}
    labels = [label for d in documents for label in d["metadata"].get("labels", {}).values()]
    assert labels
    assert {type(label) for label in labels} == {str}


def test_a_secret_may_be_named_after_its_registry() -> None:
    pod = only(render(imagePullSecrets=[{"name": "registry.example.com"}]), "Deployment")["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "registry.example.com"}]


def test_a_digest_takes_the_place_of_the_tag() -> None:
    documents = render(image__digest=DIGEST, image__tag="v9", worker__image__digest=DIGEST)
    assert container(documents)["image"] == f"localhost/tandem-operator@{DIGEST}"
    (worker,) = [v["value"] for v in container(documents)["env"] if v["name"] == "TANDEM_WORKER_IMAGE"]
    assert worker == f"localhost/tandem-worker@{DIGEST}"


def test_listed_namespaces_get_roles_and_the_cluster_only_a_look_at_the_crd() -> None:
    documents = render(rbac__scope="namespaces", rbac__namespaces=["team-a", "team-b"])
    everywhere = render()
    roles = [d for d in documents if d["kind"] == "Role" and d["metadata"]["name"] == "tandem-operator"]
    crd_rule = only(everywhere, "ClusterRole", "tandem-operator")["rules"][-1]
    assert crd_rule["resourceNames"] == ["speculativedeployments.tandem.dev"]
    assert only(documents, "ClusterRole", "tandem-operator")["rules"] == [crd_rule]
    assert {role["metadata"]["namespace"] for role in roles} == {"team-a", "team-b"}
    for role in roles:
        assert role["rules"] == only(everywhere, "ClusterRole", "tandem-operator")["rules"][:-1]
    (served,) = [v["value"] for v in container(documents)["env"] if v["name"] == "TANDEM_NAMESPACES"]
    assert served == "team-a team-b"


def test_the_crd_is_kept_when_the_release_goes_unless_told_otherwise() -> None:
    assert only(render(), "CustomResourceDefinition")["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "annotations" not in only(render(crds__keep=False), "CustomResourceDefinition")["metadata"]
    ours = yaml.safe_load((ROOT / "crds" / "speculativedeployments.yaml").read_text())
    assert only(render(), "CustomResourceDefinition")["spec"] == ours["spec"]


def test_the_prometheus_rule_holds_the_rules_that_promtool_checked() -> None:
    written = yaml.safe_load((CHART / "rules" / "tandem.yaml").read_text())
    assert only(render(metrics__rules__enabled=True), "PrometheusRule")["spec"] == written
    linked = only(render(metrics__rules__enabled=True, metrics__rules__runbookUrl="https://x/"), "PrometheusRule")
    urls = [rule["annotations"]["runbook_url"] for rule in linked["spec"]["groups"][1]["rules"]]
    assert "https://x/TandemRolledBack.md" in urls
    assert len(urls) == 8


def test_the_dashboards_reach_grafana_as_they_are() -> None:
    found = only(render(metrics__dashboards__enabled=True), "ConfigMap")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["data"] == {file.name: file.read_text() for file in (CHART / "dashboards").iterdir()}


def test_workers_series_get_the_name_of_their_object() -> None:
    documents = render(metrics__podMonitor__enabled=True)
    (endpoint,) = only(documents, "PodMonitor", "tandem-workers")["spec"]["podMetricsEndpoints"]
    assert [r["targetLabel"] for r in endpoint["relabelings"]] == ["specdep"]
    (own,) = only(documents, "PodMonitor", "tandem-operator")["spec"]["podMetricsEndpoints"]
    assert own["honorLabels"]
