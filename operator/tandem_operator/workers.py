"""Talking to workers over HTTP: reading status and counters, switching speculation, replaying calibration prompts."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

import aiohttp
from pydantic import BaseModel, ValidationError

from tandem_operator.api.recipe import Recipe
from tandem_operator.engines import Adapter, adapter_of
from tandem_operator.plan.observed import Pod, Worker
from tandem_operator.signing import Signer
from tandem_worker.contract import ORIGIN_HEADER, WORKER_PORT, Origin, SpeculationCommand, WorkerStatus

log = logging.getLogger(__name__)

READ_TIMEOUT = aiohttp.ClientTimeout(total=3)
REPLAY_TIMEOUT = aiohttp.ClientTimeout(total=120)
ASKED_AT_ONCE = 64  # an object may have a thousand workers
VERSIONS_KEPT = 10_000
REPLAYED_TOKENS = 64
CALIBRATION_PROMPTS = (
    "Q: Where does the water of a river come from?\nA:",
    "The quick brown fox jumps over the lazy dog. The lazy dog",
    '{"name": "Ada", "age": 36, "city": "London", "items": [',
    "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n",
    "In order: Monday, Tuesday, Wednesday,",
    "The baker lives in the old town. Every morning the baker",
)


class EngineVersion(BaseModel):
    """What SGLang's /server_info and vLLM's /version have in common."""

    version: str


class Workers:
    def __init__(self, session: aiohttp.ClientSession, signer: Signer) -> None:
        self._session = session
        self._signer = signer
        self._replays: dict[str, asyncio.Task[None]] = {}  # by pod uid: one at a time
        self._versions: dict[str, tuple[int, str]] = {}  # by pod uid: its restarts, and what it said then
        self._reading = asyncio.Semaphore(ASKED_AT_ONCE)
        self._switching = asyncio.Semaphore(ASKED_AT_ONCE)  # who takes a pair back does not stand in line with readers

    async def read(self, ip: str, pod: Pod, recipe: Recipe) -> Worker:
        """What the worker says; a part that can't be read is None, which is no evidence of anything."""
        async with self._reading:
            return await self._read(ip, pod, recipe)

    async def _read(self, ip: str, pod: Pod, recipe: Recipe) -> Worker:
        adapter = adapter_of(recipe.engine, recipe.speculation)
        if adapter.cooperates:
            known, (text, problem) = await asyncio.gather(self._status(ip), self._get(ip, "/metrics"))
            worker = Worker(status=known)
        else:
            version, (text, problem) = await asyncio.gather(self._version(ip, pod, adapter), self._get(ip, "/metrics"))
            worker = Worker(version=version, started_speculating=recipe.speculates and not pod.target_alone)
        if not text:
            return replace(worker, problem=problem)
        try:
            read = adapter.read(text)
        except ValueError as error:
            log.warning("/metrics of %s gives no evidence: %s", ip, error)
            return replace(worker, problem=str(error)[:200])
        return replace(worker, counts=read.counts, running=read.running, steps=read.steps)

    async def _status(self, ip: str) -> WorkerStatus | None:
        status, _ = await self._get(ip, "/status")
        try:
            return WorkerStatus.model_validate_json(status) if status else None
        except ValidationError as error:
            log.warning("/status of %s is not what the contract says: %s", ip, error)
            return None

    async def _version(self, ip: str, pod: Pod, adapter: Adapter) -> str:
        """Empty while the engine does not say. It is asked once in each of its lives: an image's tag may be moved."""
        restarts, version = self._versions.get(pod.uid, (-1, ""))
        if restarts == pod.restarts:
            return version
        text, problem = await self._get(ip, adapter.version_path)
        try:
            version = EngineVersion.model_validate_json(text).version
        except ValidationError:
            log.info("%s of %s names no version: %s", adapter.version_path, ip, problem)
            return ""
        self._versions[pod.uid] = pod.restarts, version
        if len(self._versions) > VERSIONS_KEPT:
            del self._versions[next(iter(self._versions))]  # the oldest, most likely of a pod that has gone
        return version

    async def switch(self, ip: str, pod_uid: str, enabled: bool, reason: str) -> str:
        """Switch speculation; returns what went wrong, or an empty string."""
        url = f"http://{_host(ip)}:{WORKER_PORT}/admin/speculation"
        async with self._switching:
            token = self._signer.sign(SpeculationCommand.to_pod(pod_uid, enabled, reason, time.time()))
            headers = {"Authorization": f"Bearer {token}"}
            try:
                async with self._session.post(url, headers=headers, timeout=READ_TIMEOUT) as response:
                    return "" if response.status == 200 else f"{response.status}: {(await response.text())[:200]}"
            except (aiohttp.ClientError, TimeoutError) as error:
                return f"{type(error).__name__}: {error}"

    def replay(self, ip: str, pod_uid: str, model: str) -> None:
        """Send the calibration prompts, marked as such, in the background. Does nothing while the last ones run."""
        if pod_uid in self._replays:
            return
        task = asyncio.create_task(self._replay(ip, model))
        self._replays[pod_uid] = task
        task.add_done_callback(lambda _: self._replays.pop(pod_uid, None))

    async def _replay(self, ip: str, model: str) -> None:
        url = f"http://{_host(ip)}:{WORKER_PORT}/v1/completions"
        for prompt in CALIBRATION_PROMPTS:
            body = {"model": model, "prompt": prompt, "max_tokens": REPLAYED_TOKENS, "temperature": 0}
            try:
                headers = {ORIGIN_HEADER: Origin.CALIBRATION}
                async with self._session.post(url, json=body, headers=headers, timeout=REPLAY_TIMEOUT) as response:
                    await response.read()
            except (aiohttp.ClientError, TimeoutError) as error:
                log.info("calibration prompt to %s failed: %s", ip, error)
                return

    async def _get(self, ip: str, path: str) -> tuple[str, str]:
        """The body, or why there is none."""
        try:
            async with self._session.get(f"http://{_host(ip)}:{WORKER_PORT}{path}", timeout=READ_TIMEOUT) as response:
                if response.status != 200:
                    return "", f"{path} answers with status {response.status}"
                return await response.text(), f"{path} is empty"
        except UnicodeDecodeError:
            return "", f"{path} is no text"
        except (aiohttp.ClientError, TimeoutError):
            return "", f"{path} does not answer"


def _host(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip
