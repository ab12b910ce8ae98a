"""The CRD, generated from the models: `python -m tandem_operator.api.crd > crds/speculativedeployments.yaml`.

Kubernetes wants a structural schema: references inlined, no `anyOf` around an optional, no titles, and its own
extensions for CEL rules, list types and int-or-string. Anything here that Kubernetes does not know would be an error
at `kubectl apply`, so the translation is closed: an unknown construct raises.
"""

from __future__ import annotations

import sys
from typing import Any

import yaml
from pydantic import BaseModel

from tandem_operator.api.base import GROUP, KIND, PLURAL, RULES, SHORT_NAME, VERSION
from tandem_operator.api.spec import Spec
from tandem_operator.api.status import Status

Json = dict[str, Any]

COLUMNS = (
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
    ("Validated", "string", '.status.conditions[?(@.type=="Validated")].status'),
    ("Accept-Len", "number", ".status.acceptance.acceptLength"),
    ("Stable", "string", ".status.stableRevision"),
    ("Canary", "string", ".status.canaryRevision"),
    ("Weight", "integer", ".status.weight"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
_KEPT = {
    "type", "format", "description", "default", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength",
    "minItems", "maxItems", "maxProperties", "required", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
}  # fmt: skip
# Children are named after the object with a revision behind it; a Service's name begins with a letter, and names of
# Services and values of labels end at 63 characters.
_NAME: Json = {"type": "string", "maxLength": 40, "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}
# Of an object that no operator has seen. Without it kstatus takes a new object for one that is as it should be.
NOT_OBSERVED: Json = {"observedGeneration": -1}
_DROPPED = {"title", "$defs", "properties", "items", "additionalProperties", RULES}


def structural(model: type[BaseModel]) -> Json:
    """The structural schema of a model. Raises ValueError for a construct that has no counterpart."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _translate(schema, schema.get("$defs", {}))


def _translate(node: Json, definitions: dict[str, Json]) -> Json:
    if "$ref" in node:
        inner = definitions[node["$ref"].rsplit("/", 1)[1]]
        around = {key: value for key, value in node.items() if key != "$ref"}
        return _translate({**inner, **around}, definitions)
    if node.get("x-kubernetes-int-or-string"):
        kept: Json = {key: node[key] for key in ("description", "default") if key in node}
        return {"x-kubernetes-int-or-string": True, **kept}
    if "anyOf" in node:
        variants = [variant for variant in node["anyOf"] if variant != {"type": "null"}]
        if len(variants) != 1:
            raise ValueError(f"no structural schema for a union: {node}")
        around = {key: value for key, value in node.items() if key not in ("anyOf", "title")}
        return _translate({**variants[0], **around}, definitions)
    if "const" in node:
        node = {**{key: value for key, value in node.items() if key != "const"}, "enum": [node["const"]]}
    unknown = set(node) - _KEPT - _DROPPED
    if unknown:
        raise ValueError(f"no structural schema for {sorted(unknown)} in {node}")
    schema = {key: value for key, value in node.items() if key in _KEPT and not (key == "default" and value is None)}
    if "default" in schema:
        schema["default"] = _without_nulls(schema["default"])
    if "properties" in node:
        schema["properties"] = {name: _translate(inner, definitions) for name, inner in node["properties"].items()}
        if RULES in node:
            schema[RULES] = [{"rule": own["rule"], "message": own["message"]} for own in node[RULES]]  # pydantic sorts
    if "items" in node:
        schema["items"] = _translate(node["items"], definitions)
    if isinstance(node.get("additionalProperties"), dict):
        schema["additionalProperties"] = _translate(node["additionalProperties"], definitions)
    return schema


def _without_nulls(value: Any) -> Any:
    """The API server refuses a null in a default; kubectl apply leaves it out by itself, helm and others do not."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def custom_resource_definition() -> Json:
    spec, status = structural(Spec), structural(Status)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
                "categories": ["tandem"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": "A target and its drafter: proven, rolled out, watched, taken back.",
                            "required": ["spec"],
                            "properties": {
                                "metadata": {"type": "object", "properties": {"name": _NAME}},
                                "spec": spec,
                                "status": {**status, "default": NOT_OBSERVED},
                            },
                        }
                    },
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path} for name, kind, path in COLUMNS
                    ],
                }
            ],
        },
    }


class _Plain(yaml.SafeDumper):
    """Without anchors: a person reads this file."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def main() -> None:
    sys.stdout.write("# Generated by `make crds` from operator/tandem_operator/api: do not edit.\n")
    yaml.dump(custom_resource_definition(), sys.stdout, Dumper=_Plain, sort_keys=False, width=120)


if __name__ == "__main__":
    main()
