"""Is the CRD that is installed this operator's own?

Helm never upgrades a CRD. With an older one the API server prunes fields that it does not know, a guard's threshold
among them, without a word. So the operator compares and says so, in its log and in a metric.
"""

from __future__ import annotations

from kubernetes.aio import client

from tandem_operator import kube
from tandem_operator.api import GROUP, PLURAL, VERSION
from tandem_operator.api.crd import custom_resource_definition


def missing_fields(ours: object, installed: object, path: str = "") -> list[str]:
    """Paths of fields that our schema has and the installed one lacks. Both: openAPIV3Schema as plain JSON."""
    if not isinstance(ours, dict) or not isinstance(installed, dict):
        return []
    missing: list[str] = []
    theirs = installed.get("properties") or {}
    for name, schema in (ours.get("properties") or {}).items():
        here = f"{path}.{name}".lstrip(".")
        missing += missing_fields(schema, theirs[name], here) if name in theirs else [here]
    return missing + missing_fields(ours.get("items"), installed.get("items"), f"{path}[]")


async def crd_problem(api: client.ApiClient) -> str:
    """What is wrong with the installed CRD, as a sentence; empty when it has every field that this operator reads."""
    name = f"{PLURAL}.{GROUP}"
    read = client.ApiextensionsV1Api(api).read_custom_resource_definition_without_preload_content
    try:
        found = await kube.got(kube.CrdObject, read, name)
    except client.ApiException as error:
        return f"CRD {name} can't be read ({error.reason}): apply crds/ of this version"
    theirs = next((v.crd_schema.openapi for v in found.spec.versions if v.name == VERSION), None)
    ours = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    missing = missing_fields(ours, theirs) if theirs else [f"version {VERSION}"]
    if not missing:
        return ""
    return f"CRD {name} is older than this operator and drops {', '.join(missing)}: apply crds/ of this version"
