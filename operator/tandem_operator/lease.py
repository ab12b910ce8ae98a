"""Two operators must not act at once: the one that holds a Lease does, the others wait.

Not the client library's election: that one goes by the wall clock, so a clock that is set makes two leaders, it does
not give the lease back at the end, so every restart would wait, and it ends with the first connection that breaks.
Here a lease that was not renewed counts as abandoned once the *own* monotonic clock has seen it stand still for
HOLD_SECONDS; the holder stops acting after RENEW_WITHIN_SECONDS without a renewal, which is earlier.

A holder that was stopped (SIGSTOP, a frozen machine) may do the rest of one pass when it wakes up. That does no harm:
a status is written under the version that was read, and children are put right by the next pass of the new holder.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kubernetes.aio import client
from pydantic import Field

from tandem_operator import kube
from tandem_operator.api.base import ApiModel

log = logging.getLogger(__name__)

NAME = "tandem-operator"
# The first three as in client-go: an API server that is slow for some seconds must not end the operator.
HOLD_SECONDS, RENEW_WITHIN_SECONDS, RENEW_EVERY_SECONDS, LOOK_EVERY_SECONDS = 15.0, 10.0, 2.0, 1.0
TRY_SECONDS = 5.0


class LeaseLost(Exception):
    """Somebody else may act now, so this process must not."""


class _Meta(ApiModel):
    resource_version: str = ""


class _Spec(ApiModel):
    holder: str = Field(default="", alias="holderIdentity")
    transitions: int = Field(default=0, alias="leaseTransitions")


class _Lease(ApiModel):
    metadata: _Meta = _Meta()
    spec: _Spec = _Spec()


class _Problem(NamedTuple):
    """Why the lease is not ours. That another operator has it is as it should be, that it can't be had is not."""

    level: int
    words: str


class Lease:
    """`identity`: of the pod. A container that was restarted in it takes its own lease up again at once."""

    def __init__(self, api: client.ApiClient, namespace: str, identity: str) -> None:
        self._api = client.CoordinationV1Api(api)
        self._namespace, self._identity = namespace, identity
        self._seen, self._seen_seconds = "", 0.0  # the version of the lease, and since when it has stood still
        self._renewed_seconds = 0.0

    async def acquire(self) -> None:
        """Until it is ours. Why it is not, is told when that changes."""
        told = None
        while problem := await self._problem():
            if problem != told:
                log.log(problem.level, "waiting for the lease %s/%s: %s", self._namespace, NAME, problem.words)
            told = problem
            await asyncio.sleep(LOOK_EVERY_SECONDS)
        log.info("%s holds the lease %s/%s", self._identity, self._namespace, NAME)

    async def keep(self) -> None:
        """Renew it until cancelled. Raises LeaseLost."""
        while True:
            await asyncio.sleep(RENEW_EVERY_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(TRY_SECONDS):
                    if problem := await self._problem():
                        log.warning("the lease %s/%s was not renewed: %s", self._namespace, NAME, problem.words)
            if _now() - self._renewed_seconds > RENEW_WITHIN_SECONDS:
                raise LeaseLost(f"the lease was not renewed for {_now() - self._renewed_seconds:.0f} s")

    async def release(self) -> None:
        """So that the next operator need not wait. That it can't be reached changes nothing."""
        with suppress(*kube.UNANSWERED):
            async with asyncio.timeout(TRY_SECONDS):
                found = await self._read()
                if found and found.spec.holder == self._identity:
                    await self._write(found, holder="")

    async def _problem(self) -> _Problem | None:
        """Take or renew it. Why it is not ours, if it is not; whatever failed is tried again by the caller."""
        asked_seconds = _now()
        try:
            found = await self._read()
            if found is not None and not self._free(found):
                return _Problem(logging.INFO, f"{found.spec.holder} holds it")
            await self._write(found, holder=self._identity)
        except kube.UNANSWERED as error:
            refused = isinstance(error, client.ApiException) and error.status == 403
            needs = " (the operator's role needs get, create and update on leases)" * refused
            return _Problem(logging.WARNING, kube.words(error) + needs)
        self._renewed_seconds = asked_seconds
        return None

    def _free(self, found: _Lease) -> bool:
        if found.metadata.resource_version != self._seen:
            self._seen, self._seen_seconds = found.metadata.resource_version, _now()
        abandoned = _now() - self._seen_seconds > HOLD_SECONDS
        return found.spec.holder in ("", self._identity) or abandoned

    async def _read(self) -> _Lease | None:
        try:
            return await kube.got(
                _Lease, self._api.read_namespaced_lease_without_preload_content, NAME, self._namespace
            )
        except client.ApiException as error:
            if error.status == 404:
                return None
            raise

    async def _write(self, found: _Lease | None, holder: str) -> None:
        """Under the version that was read: of two who try, one gets a conflict."""
        metadata: dict[str, Any] = {"name": NAME, "namespace": self._namespace}
        taken_over = found is not None and found.spec.holder != holder
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": int(HOLD_SECONDS),
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),  # for people; nothing goes by it
            "leaseTransitions": (found.spec.transitions if found else 0) + int(taken_over),
        }
        body: Any = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        if found is None:
            await self._api.create_namespaced_lease(self._namespace, body)
        else:
            metadata["resourceVersion"] = found.metadata.resource_version
            await self._api.replace_namespaced_lease(NAME, self._namespace, body)


def _now() -> float:
    return asyncio.get_running_loop().time()
