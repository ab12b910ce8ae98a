"""Who waits for the lease is told why: that another operator has it, or that it can't be had at all."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp
import pytest
from kubernetes.aio import client

from tandem_operator import kube, lease
from tandem_operator.lease import Lease

DENIED = client.ApiException(status=403, reason="Forbidden")
DENIED.body = '{"kind": "Status", "message": "leases is forbidden: User x cannot get resource leases"}'


def found(holder: str) -> lease._Lease:
    return lease._Lease.model_validate({"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": holder}})


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([found("")], []),
        ([found("other"), found("other"), found("")], ["other holds it"]),
        (
            [DENIED, DENIED, found("")],
            [
                "leases is forbidden: User x cannot get resource leases "
                "(the operator's role needs get, create and update on leases)"
            ],
        ),
        ([TimeoutError(), found("")], ["TimeoutError"]),
        ([aiohttp.ClientOSError("refused"), found("other"), found("")], ["ClientOSError refused", "other holds it"]),
    ],
    ids=["free", "held", "denied", "no answer", "away, then held"],
)
async def test_why_the_lease_is_waited_for_is_told_when_it_changes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answers: list[Any], told: list[str]
) -> None:
    left = iter(answers)
    caplog.set_level(logging.INFO)

    async def got(*_: object) -> lease._Lease:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def written(*_: object, **__: object) -> None: ...

    monkeypatch.setattr(kube, "got", got)
    monkeypatch.setattr(client.CoordinationV1Api, "replace_namespaced_lease", written)
    monkeypatch.setattr(lease, "LOOK_EVERY_SECONDS", 0.0)
    async with asyncio.timeout(10):
        await Lease(client.ApiClient.__new__(client.ApiClient), "ns", "me").acquire()
    said = [(record.levelname, record.getMessage()) for record in caplog.records if "waiting" in record.getMessage()]
    levels = ["INFO" if why == "other holds it" else "WARNING" for why in told]
    assert said == [
        (level, f"waiting for the lease ns/tandem-operator: {why}") for level, why in zip(levels, told, strict=True)
    ]
