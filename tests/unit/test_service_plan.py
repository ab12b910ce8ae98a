"""The requests and the book-keeping of `make bench-service`."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from tokenizers import Tokenizer

from service_client import ask
from service_plan import (
    KNOWN,
    Account,
    Asked,
    End,
    Histogram,
    Outcome,
    Sample,
    Schedule,
    joined,
    memory_of,
    parts_of,
    trend,
)
from tandem_worker.server.chat import ChatRequest
from tandem_worker.server.completions import CompletionRequest

TINY = Path(__file__).parents[2] / "examples" / "tiny-pair"
TEXTS = [json.loads(line)["prompt"] for line in (TINY / "prompts.jsonl").read_text().splitlines()]
CONTEXT = 512


@pytest.fixture(scope="module")
def drawn() -> list[Asked]:
    return list(islice(Schedule(1, TEXTS, CONTEXT), 1500))


def test_every_request_is_one_that_the_api_takes(drawn: list[Asked]) -> None:
    for asked in drawn:
        kind = ChatRequest if asked.route.startswith("/v1/chat") else CompletionRequest
        kind.model_validate({"model": "it", **asked.body})


def test_prompt_and_answer_fit_the_context(drawn: list[Asked]) -> None:
    tokenizer = Tokenizer.from_file(str(TINY / "target" / "tokenizer.json"))
    for asked in drawn[:300]:
        prompts = asked.body.get("prompt") or "\n".join(one["content"] for one in asked.body["messages"])
        for prompt in [prompts] if isinstance(prompts, str) else prompts:
            assert 0 < len(tokenizer.encode(prompt).ids) < CONTEXT - asked.body["max_tokens"]


def test_every_kind_of_request_is_drawn(drawn: list[Asked]) -> None:
    fields = Counter(name for asked in drawn for name in asked.body)
    wanted = "temperature top_k top_p min_p presence_penalty frequency_penalty repetition_penalty seed stop logit_bias"
    assert all(fields[name] > 20 for name in (*wanted.split(), "logprobs", "speculate", "stream", "messages", "prompt"))
    assert {asked.choices for asked in drawn} == {1, 2, 4}
    leaving = [asked for asked in drawn if asked.may_leave]
    assert 100 < len(leaving) < 600
    assert all(asked.stream for asked in leaving if asked.leave_after_events)
    assert {asked.known for asked in drawn} == {None, *range(KNOWN)}


def test_one_seed_gives_one_schedule(drawn: list[Asked]) -> None:
    assert list(islice(Schedule(1, TEXTS, CONTEXT), 50)) == drawn[:50]
    assert list(islice(Schedule(2, TEXTS, CONTEXT), 50)) != drawn[:50]


def test_a_known_request_differs_in_nothing_that_changes_its_text(drawn: list[Asked]) -> None:
    bodies: dict[int, str] = {}
    for asked in drawn:
        if asked.known is not None:
            harmless = {"stream", "stream_options", "speculate"}
            body = json.dumps({name: value for name, value in asked.body.items() if name not in harmless})
            assert bodies.setdefault(asked.known, body) == body
            assert asked.body["temperature"] == 0 or "seed" in asked.body


KNOWN_REQUEST = Asked("/v1/completions", {"prompt": "a", "max_tokens": 4}, known=3)


def test_a_known_request_with_another_text_is_wrong() -> None:
    account = Account()
    for text in ("same", "same", "other"):
        account.add(KNOWN_REQUEST, Outcome(End.FINISHED, 2, text))
    assert account.ends == {End.FINISHED: 2, End.WRONG: 1}
    assert "another text" in account.problems[0]


def account_of(finished: int, left: int, refused: int = 0) -> Account:
    account = Account()
    for end, count in ((End.FINISHED, finished), (End.LEFT, left), (End.REFUSED, refused)):
        for _ in range(count):
            account.add(Asked("/v1/completions", {}, choices=2), Outcome(end))
    return account


@pytest.mark.parametrize(
    ("finished", "cancelled", "failed", "refused", "agree"),
    [
        (6, 2, 0, 1, True),
        (8, 0, 0, 1, True),  # answered before it noticed
        (6, 0, 0, 2, True),  # left before it was taken in, or when it was refused
        (5, 2, 0, 1, False),  # an answer that it never gave
        (9, 0, 0, 1, False),
        (6, 3, 0, 1, False),  # ended one that nobody asked for
        (6, 1, 1, 1, False),
        (6, 2, 0, 0, False),
    ],
)
def test_both_sides_must_have_counted_the_same(
    finished: int, cancelled: int, failed: int, refused: int, agree: bool
) -> None:
    account = account_of(finished=3, left=1, refused=1)
    worker = {"finished": finished, "cancelled": cancelled, "failed": failed}
    assert (account.disagreements(worker, refused) == []) is agree


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_percentiles_are_right_within_a_bucket(share: float) -> None:
    histogram = Histogram()
    for i in range(1, 1001):
        histogram.add(i / 1000)
    assert histogram.percentile(share) == pytest.approx(share, rel=0.06)


def test_nothing_has_no_percentile() -> None:
    assert Histogram().percentile(0.5) is None


def test_memory_that_grows_only_while_it_warms_up_is_flat() -> None:
    samples = [(t, 1000 + min(t, 10) * 50) for t in range(60)]
    found = trend(samples, 15)
    assert found is not None
    assert found.flat
    assert found.per_minute == pytest.approx(0)


def test_memory_that_leaks_is_not_flat() -> None:
    found = trend([(t, 1000 + t) for t in range(60)], 15)
    assert found is not None
    assert not found.flat
    assert found.per_minute == pytest.approx(60)


def test_memory_of_which_too_little_is_known_is_neither() -> None:
    assert trend([(1, 5.0)], 0) is None


def test_what_leaks_from_part_to_part_is_seen_where_each_part_is_flat() -> None:
    parts = [[Sample(300.0 * part + t, 600 + 10 * part, None) for t in range(300)] for part in range(4)]
    assert all(memory_of(part, 75)["host_mib"]["flat"] for part in parts)
    whole = memory_of([sample for part in parts for sample in part], 75)
    assert whole == {"host_mib": {"first": 600, "last": 630, "per_minute": pytest.approx(2, abs=0.1), "flat": False}}


def test_memory_of_a_gpu_is_judged_where_there_is_one() -> None:
    memory = memory_of([Sample(1000.0 + t, 600, 42_000 + t) for t in range(600)], 75)
    assert (memory["host_mib"]["flat"], memory["gpu_mib"]["flat"]) == (True, False)
    assert memory["gpu_mib"]["first"] == 42_075  # warm by then


@pytest.mark.parametrize(("minutes", "parts"), [(20, [300] * 4), (7.5, [300, 150]), (0.4, [24])])
def test_a_load_is_asked_for_in_parts_of_five_minutes(minutes: float, parts: list[float]) -> None:
    assert parts_of(60 * minutes) == parts


def test_pieces_add_up() -> None:
    def piece(seconds: float, met: bool) -> dict:
        histogram = Histogram()
        histogram.add(seconds, times=100)
        counts = {str(bucket): count for bucket, count in histogram.counts.items()}  # as JSON gives them back
        latencies = dict.fromkeys(("first_token", "between_events", "between_tokens"), counts)
        return {"minutes": 2, "requests": {"finished": 3}, "bars": {"nothing_stuck": met}, **latencies}

    whole = joined([piece(0.01, True), piece(0.1, False)])
    assert (whole["minutes"], whole["requests"], whole["bars"]) == (4, {"finished": 6}, {"nothing_stuck": False})
    assert whole["first_token_ms"]["p50"] == pytest.approx(10, rel=0.05)
    assert whole["first_token_ms"]["p99"] == pytest.approx(100, rel=0.05)


def event(text: str, tokens: int, ending: str | None = None) -> str:
    choice = {"index": 0, "text": text, "finish_reason": ending}
    return f"data: {json.dumps({'choices': [choice], 'usage': {'completion_tokens': tokens}})}\n\n"


STREAM = Asked("/v1/completions", {"prompt": "a", "max_tokens": 3, "stream": True, "stop": "no"})
GOOD = [event("a", 1), event("b", 3, "length"), "data: [DONE]\n\n"]


@pytest.mark.parametrize(
    ("answer", "end", "told"),
    [
        (GOOD, End.FINISHED, ""),
        (GOOD[:-1], End.WRONG, "without [DONE]"),
        ([GOOD[0], GOOD[2]], End.WRONG, "ended as {}"),
        ([event("a", 2, "length"), GOOD[2]], End.WRONG, "after 2 of 3"),
        ([event("no", 3, "length"), GOOD[2]], End.WRONG, "stop string"),
        ([event("a", 4, "stop"), GOOD[2]], End.WRONG, "4 tokens"),
        (['data: {"error": {"code": "engine_broken"}}\n\n', GOOD[2]], End.WRONG, "engine_broken"),
        (["data: {\n\n"], End.WRONG, "JSONDecodeError"),
    ],
)
async def test_a_client_takes_no_stream_that_is_not_whole(answer: list[str], end: End, told: str) -> None:
    outcome = await outcome_of(STREAM, answer)
    assert outcome.end is end
    assert told in outcome.problem
    assert bool(outcome.problem) is (end is End.WRONG)


async def test_a_client_that_hangs_up_has_left() -> None:
    after_event = Asked(STREAM.route, STREAM.body, leave_after_events=1)
    assert (await outcome_of(after_event, GOOD)).end is End.LEFT
    at_once = Asked(STREAM.route, STREAM.body, leave_after_seconds=0.0)
    assert (await outcome_of(at_once, GOOD)).end is End.LEFT


async def outcome_of(asked: Asked, answer: list[str]) -> Outcome:
    async def respond(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in answer:
            await response.write(part.encode())
        return response

    app = web.Application()
    app.router.add_post(asked.route, respond)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            return await ask(session, "it", asked)
    finally:
        await runner.cleanup()
