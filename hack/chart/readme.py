"""helm/tandem/README.md, from the descriptions in values.schema.json and the defaults in values.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

HEAD = """# Tandem

Installs the operator, its rights and the CRD.

    helm install tandem helm/tandem --namespace tandem-system --create-namespace
    helm upgrade tandem helm/tandem --namespace tandem-system --reuse-values

The CRD is a template of the chart, so `helm upgrade` brings it up to date; it is kept at `helm uninstall`, and with it
all objects and their workers go on (`crds.keep`). Everything that the chart runs, and everything that the operator
starts, meets the restricted Pod Security standard. Without helm: `kubectl apply -k deploy/`.

Workers that name no image of their own run `worker.image`, by default that of the chart's version. A revision keeps the
one it was made with, also when it runs again: an upgrade restarts no worker and starts no rollout. What is validated or
made anew from then on runs the new one. To bring a new image to an object that does not change otherwise, name it in
its `spec.engine.image`: that is rolled out as a canary.

## Values

This table is made from `values.yaml` and `values.schema.json` by `make chart`. A value that is not in it is refused.

| value | default | what it is |
| --- | --- | --- |
"""


class Value(NamedTuple):
    name: str
    default: Any
    description: str


def values(chart: Path) -> Iterator[Value]:
    """In the order of values.yaml. Raises KeyError for one that the schema does not describe."""
    schema = json.loads((chart / "values.schema.json").read_text())
    return _values("", yaml.safe_load((chart / "values.yaml").read_text()), schema)


def _values(prefix: str, defaults: dict[str, Any], schema: dict[str, Any]) -> Iterator[Value]:
    for name, default in defaults.items():
        part = schema["properties"][name]
        if "description" in part:
            yield Value(prefix + name, default, part["description"])
        else:
            yield from _values(f"{prefix}{name}.", default, part)


def readme(chart: Path) -> str:
    rows = [f"| `{value.name}` | `{json.dumps(value.default)}` | {value.description} |\n" for value in values(chart)]
    return HEAD + "".join(rows)
