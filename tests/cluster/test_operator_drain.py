"""A worker that a rollout ends: what it was saying is said to the end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from cluster.operator_kit import Story, WorkerPod, real
from tandem_worker.contract import WORKER_PORT

pytestmark = pytest.mark.cluster

USERS, TOKENS = 8, 400


@dataclass
class Streams:
    """Users of one worker, each of whom streams one completion after the other until the worker is told to end."""

    worker: WorkerPod
    told_to_end: threading.Event = field(default_factory=threading.Event)
    broken: list[str] = field(default_factory=list)
    ended_afterwards: int = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(USERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.told_to_end.set()
            for thread in threads:
                thread.join()

    def _ask(self, user: int) -> None:
        body = {"model": "pair", "prompt": f"Question {user}:", "max_tokens": TOKENS, "stream": True}
        url = f"http://{self.worker.ip}:{WORKER_PORT}/v1/completions"
        with httpx.Client(timeout=120, trust_env=False) as http:
            while not self.told_to_end.is_set():
                try:
                    with http.stream("POST", url, json=body) as answer:
                        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
                except httpx.TransportError as error:
                    self.broken.append(repr(error))
                    return
                if lines[-1] != "[DONE]" or not json.loads(lines[-2])["choices"][0]["finish_reason"]:
                    self.broken.append(" ".join(lines[-2:]))
                self.ended_afterwards += self.told_to_end.is_set()


def test_streams_that_run_when_a_rollout_ends_their_worker_are_finished_whole(story: Story) -> None:
    story.apply(real(rollout={"steps": []}))
    first = story.until_stable(limit_seconds=120)
    (worker,) = story.ready_pods(revision=first)
    streams = Streams(worker)
    with streams.running():
        story.apply(real(rollout={"steps": []}, pod={"annotations": {"version": "2"}}))
        story.until(
            "the worker is told to end",
            lambda _: [pod for pod in story.pods(revision=first) if pod.terminating],
            limit_seconds=120,
        )
    assert not streams.broken
    assert streams.ended_afterwards, "nothing ran when the worker was told to end"
    story.until("its place is taken", lambda _: first not in story.serving() and len(story.serving()) == 1)
