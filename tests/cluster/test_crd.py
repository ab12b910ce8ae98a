"""What the API server makes of a SpeculativeDeployment: what it refuses, in which words, defaults, columns, scale."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from cluster.operator_kit import API_VERSION, MERGE, Operator, Refused, Story, simulated
from cluster.support import Manifest
from localcluster.cluster import ClusterError
from tandem_operator.api import KIND, PLURAL
from tandem_operator.api.crd import custom_resource_definition

pytestmark = pytest.mark.cluster

VERSION = custom_resource_definition()["spec"]["versions"][0]
SCHEMA: Manifest = VERSION["schema"]["openAPIV3Schema"]["properties"]["spec"]

# A valid spec that uses every field at least once, so that each can be changed alone.
EVERYTHING: Manifest = {
    "target": {"source": {"hostPath": {"path": "/models/target"}}},
    "drafter": {"source": {"pvc": {"claimName": "drafters", "path": "a"}}, "trainedOn": {"captureIndexes": [2, 4, 5]}},
    "speculation": {"enabled": True, "draftLength": 4},
    "engine": {
        "type": "sglang",
        "version": "0.5.23",
        "image": "worker:1",
        "gpuMemoryFraction": 0.45,
        "tensorParallel": 1,
        "contextLength": 8192,
        "args": ["--log-level=info"],
        "env": [
            {"name": "SGLANG_LOG", "value": "1"},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "token"}}},
            {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "level"}}},
        ],
    },
    "replicas": 2,
    "resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"memory": "1Gi"}},
    "validation": {"mode": "Probe", "enforcement": "Warn", "onInvalid": "ServeTargetOnly"},
    "rollout": {
        "steps": [{"weight": 50, "pause": {"seconds": 30}}],
        "maxSurge": 1,
        "maxUnavailable": 1,
        "progressDeadlineSeconds": 60,
        "rollbackWindowRevisions": 2,
        "analysis": {
            "intervalSeconds": 5,
            "initialDelaySeconds": 5,
            "timeoutSeconds": 600,
            "onInconclusive": "Hold",
            "dryRun": True,
            "minimumDrafts": 50,
            "minimumRequests": 3,
        },
    },
    "guard": {
        "minAcceptLength": 1.5,
        "toleratedDrop": 0,
        "collapseDrop": 0.95,
        "minSpeedup": 1.1,
        "baselineProbe": 0.05,
        "onCollapse": "Alert",
        "dryRun": True,
    },
    "pod": {
        "nodeSelector": {"gpu": "h200"},
        "tolerations": [{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {}},
        "runtimeClassName": "nvidia",
        "priorityClassName": "high",
        "imagePullSecrets": [{"name": "registry"}],
        "env": [
            {"name": "MODE", "value": "fast"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "token"}}},
            {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "level"}}},
        ],
        "terminationGracePeriodSeconds": 30,
        "labels": {"team": "a"},
        "annotations": {"note": "b"},
    },
    "traffic": {"httpRoute": {"name": "llama"}},
    "revisionHistoryLimit": 3,
    "paused": True,
    "modelName": "llama",
}
DEFAULT_GUARD: Manifest = {
    "minAcceptLength": 1.3,
    "toleratedDrop": 0.1,
    "collapseDrop": 0.4,
    "minSpeedup": 1,
    "baselineProbe": 0.01,
    "onCollapse": "Rollback",
    "dryRun": False,
}
FIVE_LINES: Manifest = {
    "target": {"source": {"hostPath": {"path": "/models/target"}}},
    "drafter": {"source": {"hostPath": {"path": "/models/drafter"}}},
}


def manifest(spec: Manifest, name: str = "pair") -> Manifest:
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}


def create(story: Story, body: Manifest, **query: str) -> Manifest:
    return story.api.request("POST", story.path(PLURAL), body, **query)


def try_out(story: Story, spec: Manifest) -> None:
    """All that the API server does with an object, except to keep it. Raises Refused."""
    create(story, manifest(spec), dryRun="All", fieldValidation="Strict")


def with_field(spec: Manifest, path: str, value: object) -> Manifest:
    """A copy with the field at `a.b[0].c` replaced; None removes it."""
    changed = copy.deepcopy(spec)
    *parents, last = path.replace("[", ".").replace("]", "").split(".")
    here: Any = changed
    for part in parents:
        here = here[int(part)] if part.isdigit() else here.setdefault(part, {})
    if value is None:
        del here[last]
    else:
        here[int(last) if last.isdigit() else last] = value
    return changed


@pytest.fixture
def anywhere(operator: Operator) -> Story:
    """For objects that are only tried out."""
    return Story(operator, "default")


# --- rules across fields ---------------------------------------------------------------------------------------------


class RuleCase(NamedTuple):
    """A rule's sentence, one spec on each side of it."""

    message: str
    accepted: Manifest
    refused: Manifest


def case(message: str, path: str, accepted: object, refused: object, spec: Manifest = EVERYTHING) -> RuleCase:
    return RuleCase(message, with_field(spec, path, accepted), with_field(spec, path, refused))


def host(path: str) -> Manifest:
    return {"hostPath": {"path": path}}


def claim(path: str) -> Manifest:
    return {"pvc": {"claimName": "drafters", "path": path}}


REFERENCE = {"name": "secret", "key": "token"}
RULES = [
    case("path must be absolute", "target.source", host("/models"), host("models")),
    case("path must not contain '..'", "target.source", host("/models/a..b"), host("/models/../etc")),
    case("path must not contain '..'", "drafter.source", claim("a/..b"), claim("a/../../b")),
    case("path is relative to the root of the volume", "drafter.source", claim("a"), claim("/a")),
    case("a source names exactly one of hostPath and pvc", "target.source", host("/a"), host("/a") | claim("a")),
    case("a source names exactly one of hostPath and pvc", "drafter.source", claim("a"), {}),
    case("maxSurge and maxUnavailable must not both be 0", "rollout.maxUnavailable", 1, 0,
         with_field(EVERYTHING, "rollout.maxSurge", 0)),
    case("the weights of steps must rise", "rollout.steps", [{"weight": 10}, {"weight": 50}],
         [{"weight": 50}, {"weight": 10}]),
    case("the weights of steps must rise", "rollout.steps", [], [{"weight": 10}, {"weight": 10}]),
    case("toleratedDrop must be less than collapseDrop", "guard.toleratedDrop", 0.3, 0.4,
         with_field(EVERYTHING, "guard.collapseDrop", 0.4)),
    case("valueFrom names exactly one of secretKeyRef and configMapKeyRef", "pod.env[1].valueFrom",
         {"secretKeyRef": REFERENCE}, {"secretKeyRef": REFERENCE, "configMapKeyRef": REFERENCE}),
    case("value and valueFrom exclude each other", "pod.env[0]", {"name": "A", "value": "b"},
         {"name": "A", "value": "b", "valueFrom": {"secretKeyRef": REFERENCE}}),
    case("labels must not begin with tandem.dev/ or app.kubernetes.io/", "pod.labels", {"tandem.com/name": "a"},
         {"tandem.dev/name": "a"}),
    case("labels must not begin with tandem.dev/ or app.kubernetes.io/", "pod.labels", {"app": "a"},
         {"app.kubernetes.io/name": "a"}),
    case("drafter is required unless speculation.enabled is false", "speculation.enabled", False, True,
         with_field(EVERYTHING, "drafter", None)),
    case("engine.gpuMemoryFraction is for workers on a GPU", "resources.limits", {"nvidia.com/gpu": "1"},
         {"cpu": "1"}),
    case("engine.tensorParallel needs as many GPUs", "engine.tensorParallel", 1, 2),
    case("engine.tensorParallel needs as many GPUs", "resources.limits", {"nvidia.com/gpu": 2}, {"nvidia.com/gpu": 1},
         with_field(EVERYTHING, "engine.tensorParallel", 2)),
    case("engine.tensorParallel needs as many GPUs", "resources.limits", {"nvidia.com/gpu": "2"},
         {"nvidia.com/mig-1g.10gb": "2"}, with_field(EVERYTHING, "engine.tensorParallel", 2)),
    case("drafter.source must differ from target.source", "drafter.source", host("/models/drafter"),
         host("/models/target")),
    case("drafter.source must differ from target.source", "drafter.source", claim("b"), claim("a"),
         with_field(EVERYTHING, "target.source", claim("a"))),
]  # fmt: skip


RULES += [
    case("engine.version is required for sglang and vllm", "engine", {"type": "builtin"}, {"type": "vllm"}),
    case("engine.version is required for sglang and vllm", "engine.version", "0.33.0", None),
    case("engine.version is for sglang and vllm", "engine", {"type": "vllm", "version": "0.33.0"},
         {"type": "builtin", "version": "0.33.0"}),
    case("draftLength is 1 to 8, or auto", "speculation.draftLength", 1, 0),
    case("draftLength is 1 to 8, or auto", "speculation.draftLength", 8, 9),
    case("draftLength is 1 to 8, or auto", "speculation.draftLength", "auto", "often",
         with_field(EVERYTHING, "engine", {"type": "builtin"})),
    case("draftLength: auto is for the builtin engine", "engine", {"type": "builtin"},
         {"type": "sglang", "version": "0.5.23"}, with_field(EVERYTHING, "speculation.draftLength", "auto")),
]  # fmt: skip

RULES.append(case("probe is for mode Probe", "validation", {"mode": "Probe", "probe": {"continuationTokens": 16}},
                  {"mode": "Static", "probe": {}}))  # fmt: skip

RENAMED = "modelName cannot be changed"


def every_rule(schema: Manifest) -> set[str]:
    """The messages of all CEL rules below this node."""
    own = {rule["message"] for rule in schema.get("x-kubernetes-validations", [])}
    inner = [*schema.get("properties", {}).values(), schema.get("items")]
    return own.union(*(every_rule(node) for node in inner if isinstance(node, dict)))


def test_each_rule_of_the_api_has_a_case_here() -> None:
    tested = (*(rule.message for rule in RULES), RENAMED)
    untested = [message for message in every_rule(SCHEMA) if not message.startswith(tested)]
    assert untested == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.message.replace(" ", "-"))
def test_kubectl_says_which_rule_a_spec_breaks(anywhere: Story, rule: RuleCase) -> None:
    try_out(anywhere, rule.accepted)
    with pytest.raises(ClusterError) as refused:
        anywhere.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(manifest(rule.refused)))
    assert rule.message in str(refused.value)


@pytest.mark.parametrize(("before", "after"), [("llama", "other"), ("llama", None), (None, "llama")])
def test_a_model_is_not_renamed_under_its_clients(story: Story, before: str | None, after: str | None) -> None:
    # Refused by its source, so that no worker starts for it.
    spec = with_field(EVERYTHING, "target.source", host("/not-allowed"))
    story.kubectl("apply", "-f", "-", stdin=json.dumps(manifest(with_field(spec, "modelName", before))))
    other = with_field(with_field(spec, "modelName", before), "replicas", 2)
    story.kubectl("apply", "-f", "-", stdin=json.dumps(manifest(other)))
    with pytest.raises(ClusterError) as refused:
        story.kubectl("apply", "-f", "-", stdin=json.dumps(manifest(with_field(spec, "modelName", after))))
    assert RENAMED in str(refused.value)


# --- bounds of single fields -----------------------------------------------------------------------------------------


class Bound(NamedTuple):
    path: str
    says: str
    accepted: object
    refused: object


def bounds(schema: Manifest, path: str) -> Iterator[Bound]:
    """Every bound below this node, with the last value that it lets through and the first that it does not."""
    if (least := schema.get("minimum")) is not None:
        yield Bound(path, f"should be greater than or equal to {least}", least, least - 1)
    if (most := schema.get("maximum")) is not None:
        yield Bound(path, f"should be less than or equal to {most}", most, most + 1)
    if (longest := schema.get("maxLength")) and "pattern" not in schema:
        yield Bound(path, f"may not be more than {longest} bytes", text(path, longest), text(path, longest + 1))
    if shortest := schema.get("minLength"):
        yield Bound(path, "should be at least 1 chars long", text(path, shortest), text(path, shortest - 1))
    for value in schema.get("enum", []):
        yield Bound(path, f'supported values: "{schema["enum"][0]}"', value, "Other")
    if pattern := schema.get("pattern"):
        yield Bound(path, f"should match '{pattern}'", pattern.strip("^$()").split("|")[0], "Other")
    if most := schema.get("maxItems"):
        yield Bound(path, f"must have at most {most} items", items(path, most), items(path, most + 1))
    if schema.get("minItems"):
        yield Bound(path, "should have at least 1 items", items(path, 1), [])
    if most := schema.get("maxProperties"):
        entries = {f"key{number}": "1" for number in range(most + 1)}
        yield Bound(path, f"must have at most {most} items", dict(list(entries.items())[1:]), entries)
    for name, inner in schema.get("properties", {}).items():
        yield from bounds(inner, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from bounds(schema["items"], f"{path}[0]")
    if isinstance(inner := schema.get("additionalProperties"), dict):
        yield from bounds(inner, f"{path}.key")


def text(path: str, length: int) -> str:
    return ("/" if "hostPath" in path and length else "") + "a" * (length - ("hostPath" in path))


def items(path: str, count: int) -> list[object]:
    if path.endswith("steps"):
        return [{"weight": number + 1} for number in range(count)]
    if path.endswith("captureIndexes"):
        return list(range(count))
    if path.endswith("args"):
        return [f"--flag-{number}" for number in range(count)]
    return [{"name": f"name{number}"} if "tolerations" not in path else {} for number in range(count)]


PROBE = {"prompts": {"name": "texts"}, "resume": {"claimName": "scratch"}}


def around(path: str, value: object) -> Manifest:
    """A spec in which the field at `path` may be set: a source has one kind, a variable one source of its value, and
    the builtin engine no version."""
    spec = EVERYTHING
    if (path, value) == ("engine.type", "builtin"):
        spec = with_field(spec, "engine.version", None)
    if path == "resources.limits":  # without a GPU among them
        spec = with_field(spec, "engine.gpuMemoryFraction", None)
    if path == "engine.tensorParallel":
        spec = with_field(spec, "resources.limits", {"nvidia.com/gpu": value})
    if path.startswith("validation.probe"):
        spec = with_field(spec, "validation", {"mode": "Probe", "probe": PROBE})
    for part, other in (("target", "drafter"), ("drafter", "target")):
        if path.startswith(f"{part}.source.hostPath"):
            spec = with_field(with_field(spec, f"{part}.source", host("/a")), f"{other}.source", claim("b"))
        if path.startswith(f"{part}.source.pvc"):
            spec = with_field(with_field(spec, f"{part}.source", claim("b")), f"{other}.source", host("/a"))
    if "valueFrom" in path:
        reference = "secretKeyRef" if "secretKeyRef" in path else "configMapKeyRef"
        variable = f"{path.split('.')[0]}.env[0]"
        spec = with_field(spec, variable, {"name": "A", "valueFrom": {reference: REFERENCE}})
    return spec


BOUNDS = list(bounds(SCHEMA, ""))


def test_every_field_that_a_user_can_set_is_bounded() -> None:
    """Strings, lists and maps without a bound would make the cost of CEL rules unbounded, too."""

    def unbounded(schema: Manifest, path: str) -> Iterator[str]:
        limit = {"string": "maxLength", "array": "maxItems"}.get(schema.get("type", ""))
        if limit and limit not in schema and "enum" not in schema:
            yield path
        if "additionalProperties" in schema and "maxProperties" not in schema:
            yield path
        for name, inner in schema.get("properties", {}).items():
            yield from unbounded(inner, f"{path}.{name}")
        if "items" in schema:
            yield from unbounded(schema["items"], f"{path}[]")

    assert list(unbounded(SCHEMA, "spec")) == []


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: f"{bound.path}-{bound.says.replace(' ', '-')}"[:90])
def test_a_bound_lets_the_last_value_through_and_names_the_field_of_the_first_beyond(
    anywhere: Story, bound: Bound
) -> None:
    spec = around(bound.path, bound.accepted)
    try_out(anywhere, with_field(spec, bound.path, bound.accepted))
    with pytest.raises(Refused) as refused:
        try_out(anywhere, with_field(spec, bound.path, bound.refused))
    message = str(refused.value).lower()
    assert f"spec.{bound.path}".removesuffix(".key").lower() in message
    assert bound.says.lower() in message


# --- what a user gets ------------------------------------------------------------------------------------------------


def test_five_lines_are_enough(anywhere: Story) -> None:
    stored = create(anywhere, manifest(FIVE_LINES), dryRun="All")["spec"]
    assert stored == {
        **FIVE_LINES,
        "speculation": {"enabled": True, "draftLength": 5},
        "engine": {"type": "builtin", "args": [], "env": []},
        "replicas": 1,
        "resources": {"limits": {}, "requests": {}},
        "validation": {"mode": "Static", "enforcement": "Enforce", "onInvalid": "Block"},
        "rollout": {
            "steps": [{"weight": 10}, {"weight": 50}],
            "maxSurge": 1,
            "maxUnavailable": 0,
            "rollbackWindowRevisions": 1,
            "analysis": {
                "intervalSeconds": 30, "initialDelaySeconds": 0, "timeoutSeconds": 3600, "onInconclusive": "Rollback",
                "dryRun": False, "minimumDrafts": 100, "minimumRequests": 5,
            },
        },
        "guard": DEFAULT_GUARD,
        "pod": {
            "nodeSelector": {}, "tolerations": [], "affinity": {}, "imagePullSecrets": [],
            "env": [], "terminationGracePeriodSeconds": 60, "labels": {}, "annotations": {},
        },
        "traffic": {},
        "revisionHistoryLimit": 10,
        "paused": False,
    }  # fmt: skip


def test_a_misspelt_field_is_refused_by_kubectl_and_pruned_from_others(anywhere: Story) -> None:
    misspelt = manifest(with_field(FIVE_LINES, "guard", {"minAcceptLenght": 2.0}))
    with pytest.raises(ClusterError, match=r'unknown field "spec.guard.minAcceptLenght"'):
        anywhere.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(misspelt))
    stored = create(anywhere, misspelt, dryRun="All", fieldValidation="Ignore")["spec"]
    assert stored["guard"] == DEFAULT_GUARD


@pytest.mark.parametrize("name", ["pair", "a", "llama-3-8b", "a" * 40])
def test_names_that_children_can_bear_are_accepted(anywhere: Story, name: str) -> None:
    create(anywhere, manifest(FIVE_LINES, name), dryRun="All")


@pytest.mark.parametrize("name", ["8b", "a" * 41, "llama.3"])
def test_names_that_children_could_not_bear_are_refused(anywhere: Story, name: str) -> None:
    with pytest.raises(Refused, match=r"metadata\.name"):
        create(anywhere, manifest(FIVE_LINES, name), dryRun="All")


def test_kubectl_get_shows_what_matters_in_columns(story: Story) -> None:
    story.apply(simulated())
    stable = story.until_stable()
    with story.traffic():
        story.until("acceptance is shown", lambda shown: shown.status.acceptance)
    header, row = story.kubectl("get", "specdep").splitlines()
    assert header.split() == ["NAME", "READY", "VALIDATED", "ACCEPT-LEN", "STABLE", "CANARY", "WEIGHT", "AGE"]
    name, ready, validated, accept_length, shown_stable, weight, _ = row.split()  # there is no canary
    assert (name, ready, validated, shown_stable, weight) == ("pair", "True", "True", stable, "0")
    assert 2.0 < float(accept_length) < 6.0
    assert "speculativedeployment.tandem.dev/pair" in story.kubectl("get", "tandem", "--output=name")


def test_an_autoscaler_can_read_and_write_the_scale(story: Story) -> None:
    story.apply(simulated())
    story.until_stable()
    story.kubectl("scale", "specdep/pair", "--replicas=3")
    story.until("three workers serve", lambda _: sum(story.serving().values()) == 3)
    story.until("the scale says so", lambda shown: shown.status.replicas == 3)
    scale = story.api.request("GET", story.path(PLURAL, "pair/scale"))
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (3, 3)
    selected = story.api.request("GET", story.path("pods"), labelSelector=scale["status"]["selector"])["items"]
    assert {pod["metadata"]["uid"] for pod in selected} == {pod.uid for pod in story.pods()}
    assert len(selected) == 3
    assert story.show().spec.replicas == 3


def test_status_is_a_subresource(story: Story) -> None:
    body = manifest(with_field(FIVE_LINES, "replicas", 0)) | {"status": {"stableRevision": "mine"}}
    status = create(story, body)["status"]
    assert (status["stableRevision"], status["observedGeneration"]) == ("", -1), "not seen by an operator yet"
    written = story.api.request(
        "PATCH", story.path(PLURAL, "pair/status"), {"status": {"weight": 7}, "spec": {"replicas": 9}}, MERGE
    )
    assert written["status"]["weight"] == 7
    assert written["spec"]["replicas"] == 0
    assert written["metadata"]["generation"] == 1
