"""Names, labels and annotations of everything the operator creates."""

from __future__ import annotations

from tandem_operator.api import GROUP

FIELD_MANAGER = "tandem"
MANAGED_BY = "app.kubernetes.io/managed-by"
NAME = f"{GROUP}/name"
REVISION = f"{GROUP}/revision"
ROLE = f"{GROUP}/role"  # worker | validation
VALIDATION_KEY = f"{GROUP}/validation"
ATTEMPT = f"{GROUP}/attempt"
SERVED = f"{GROUP}/served"  # on the record of a revision that once was stable
RETRY = f"{GROUP}/retry"  # set by the user: ends every quarantine
SPECULATION = f"{GROUP}/speculation"  # on pods that were started without their drafter: off
PORT_NAME = "http"
KEY_FILE = "operator-key.pem"

WORKER = "worker"
VALIDATION = "validation"

OURS = f"{MANAGED_BY}={FIELD_MANAGER},{NAME}"
"""Selects the children of all objects."""


def common_labels(name: str) -> dict[str, str]:
    """Of every child. Selectors use only `tandem.dev/…`, which nobody else sets."""
    return {
        "app.kubernetes.io/name": "tandem-worker",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/part-of": "tandem",
        MANAGED_BY: FIELD_MANAGER,
        NAME: name,
    }


def worker_selector(name: str) -> dict[str, str]:
    return {NAME: name, ROLE: WORKER}


def child(name: str, revision: str) -> str:
    """Deployment and ControllerRevision of a revision."""
    return f"{name}-{revision}"


def validation_job(name: str, key: str, attempt: int) -> str:
    return f"{name}-validate-{key}" + (f"-{attempt}" if attempt else "")


def worker_account(name: str) -> str:
    """Service account of workers and validation Jobs. No role names it, and its token is not mounted."""
    return f"{name}-worker"


def operator_key(name: str) -> str:
    """ConfigMap that holds the public key of the operator."""
    return f"{name}-operator-key"
