"""Is the CRD that is installed this operator's own?

Helm never upgrades a CRD. With an older one the API server prunes fields that it does not know, a guard's threshold
among them, without a word. So the operator compares and says so, in its log and in a metric.
"""

from __future__ import annotations

import logging

from kubernetes.aio import client

from tandem_operator.api import GROUP, PLURAL, VERSION
from tandem_operator.api.crd import custom_resource_definition

log = logging.getLogger(__name__)


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


async def crd_is_own(api: client.ApiClient) -> bool:
    """False, with a line in the log, when the installed CRD is missing or lacks fields that this operator reads."""
    name = f"{PLURAL}.{GROUP}"
    try:
        found = await client.ApiextensionsV1Api(api).read_custom_resource_definition(name)
    except client.ApiException as error:
        log.error("CRD %s can't be read (%s): apply crds/ of this version", name, error.reason)
        return False
    installed = next((v for v in found.to_dict()["spec"]["versions"] if v["name"] == VERSION), None)
    ours = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    theirs = ((installed or {}).get("schema") or {}).get("openAPIV3Schema")
    missing = missing_fields(ours, theirs) if theirs else [f"version {VERSION}"]
    if missing:
        log.error(
            "CRD %s is older than this operator and drops %s: apply crds/ of this version", name, ", ".join(missing)
        )
    return not missing
