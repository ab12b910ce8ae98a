"""The CRD that is committed is the one that the models give."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tandem_operator.api.crd import custom_resource_definition, main
from tandem_operator.crd_check import missing_fields

CRD = Path(__file__).resolve().parents[2] / "crds" / "speculativedeployments.yaml"


def test_crds_is_what_the_models_give(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    assert CRD.read_text() == capsys.readouterr().out, "stale: run `make crds`"


def schema() -> dict:
    found: dict = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def test_an_older_crd_is_told_by_the_fields_that_it_would_drop() -> None:
    older = schema()
    del older["properties"]["spec"]["properties"]["guard"]["properties"]["minAcceptLength"]
    del older["properties"]["spec"]["properties"]["pod"]["properties"]["env"]["items"]["properties"]["valueFrom"]
    assert missing_fields(schema(), older) == ["spec.guard.minAcceptLength", "spec.pod.env[].valueFrom"]


def test_a_newer_crd_lacks_nothing() -> None:
    newer = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    newer["properties"]["spec"]["properties"]["unheardOf"] = {"type": "string"}
    assert missing_fields(schema(), newer) == []
