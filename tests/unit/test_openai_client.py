"""The worker as people use it: through OpenAI's own client library."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import openai
import pytest
import torch

from tandem_worker.contract import Metric
from tandem_worker.server.envelope import MAX_BODY_BYTES
from tandem_worker.server.start import start
from tandem_worker.server.worker import Worker
from unit.pairs import copy_of
from unit.serving import over_http, tiny_pair, tiny_settings, tokenizer, wait_for

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('no such role') }}{% endif %}"
    "{% if message.role == 'user' %}Q: {% endif %}{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}A:{% endif %}"
)
PROMPT = "Q: Which colour is the"
TALK: Any = [{"role": "system", "content": "Short."}, {"role": "user", "content": "Which colour is the cat?"}]
WRITTEN = "<s>Short.\nQ: Which colour is the cat?\nA:"


@dataclass
class Used:
    worker: Worker
    client: openai.OpenAI
    http: httpx.Client

    def complete(self, prompt: Any = PROMPT, **asked: Any) -> Any:
        return self.client.completions.create(**{"model": "tiny", "prompt": prompt, "temperature": 0, **asked})

    def chat(self, messages: Any = TALK, **asked: Any) -> Any:
        asked = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 12, **asked}
        return self.client.chat.completions.create(**asked)


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    target = copy_of("target", tmp_path_factory.mktemp("chatty"))
    (target / "chat_template.jinja").write_text(TEMPLATE)
    worker = start(replace(tiny_settings(), target=target, max_waiting=3))
    with over_http(worker) as address, httpx.Client(base_url=address, timeout=60) as http:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60)
        yield Used(worker, client, http)
        client.close()


# --- chat ------------------------------------------------------------------------------------------------------------


def test_chat_answers_what_the_templates_prompt_is_completed_with(used: Used) -> None:
    answer = used.chat()
    ids = tokenizer().encode(WRITTEN, add_special_tokens=False).ids
    expected = used.complete(ids, max_tokens=12)
    (choice,) = answer.choices
    assert (answer.object, answer.model, answer.id[:9]) == ("chat.completion", "tiny", "chatcmpl-")
    assert (choice.message.role, choice.message.content) == ("assistant", expected.choices[0].text)
    assert (choice.finish_reason, choice.logprobs, choice.message.refusal) == ("length", None, None)
    assert answer.usage == expected.usage
    assert answer.usage.prompt_tokens == len(ids)


def test_streamed_chat_is_the_same_text_with_usage_at_its_end(used: Used) -> None:
    whole = used.chat()
    chunks = list(used.chat(stream=True, stream_options={"include_usage": True}))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    first, *pieces, last = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert "".join(piece.choices[0].delta.content for piece in pieces) == whole.choices[0].message.content
    assert [piece.choices[0].finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert (last.choices, last.usage) == ([], whole.usage)
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_chat_without_a_length_goes_on_to_the_end_of_the_context_or_of_the_text(used: Used) -> None:
    answer = used.chat(max_tokens=None)
    assert answer.choices[0].finish_reason in ("stop", "length")
    if answer.choices[0].finish_reason == "length":
        assert answer.usage.total_tokens == used.worker.engine.engine.context_limit
    assert used.chat(max_tokens=None, max_completion_tokens=3).usage.completion_tokens == 3


def test_content_may_come_in_parts_and_developer_is_the_systems_new_name(used: Used) -> None:
    parts = [
        {"role": "developer", "content": [{"type": "text", "text": "Sho"}, {"type": "text", "text": "rt."}]},
        TALK[1],
    ]
    assert used.chat(parts).choices[0].message == used.chat().choices[0].message


def test_client_helper_that_streams_chat_agrees(used: Used) -> None:
    """The library's own accumulator. It takes a text that ends for want of tokens for a failure."""
    stop = used.chat().choices[0].message.content[6:9]
    asked: Any = {"model": "tiny", "messages": TALK, "temperature": 0, "max_tokens": 12, "stop": stop}
    with used.client.chat.completions.stream(**asked) as events:
        choice = events.get_final_completion().choices[0]
    expected = used.chat(stop=stop).choices[0]
    assert (choice.message.content, choice.finish_reason) == (expected.message.content, "stop")


# --- log probabilities -----------------------------------------------------------------------------------------------


def expected_logs(prompt: list[int], tokens: list[int]) -> list[torch.Tensor]:
    """[V] by plain torch for every generated token."""
    with torch.inference_mode():
        logits = tiny_pair()[0].whole(torch.tensor([prompt + tokens]))[0][0]
    return list(logits[len(prompt) - 1 : -1].double().log_softmax(-1))


def test_log_probabilities_of_completions_are_the_models(used: Used) -> None:
    answer = used.complete(max_tokens=10, logprobs=3)
    logs, text = answer.choices[0].logprobs, answer.choices[0].text
    assert "".join(logs.tokens) == text
    assert [text[i : i + len(token)] for i, token in zip(logs.text_offset, logs.tokens, strict=True)] == logs.tokens
    prompt = tokenizer().encode(PROMPT).ids
    tokens = tokenizer().encode(PROMPT + text).ids[len(prompt) :]
    for value, top, token, expected in zip(
        logs.token_logprobs, logs.top_logprobs, logs.tokens, expected_logs(prompt, tokens), strict=True
    ):
        assert value == pytest.approx(expected.max().item(), abs=1e-3)  # greedy
        assert top[token] == value == max(top.values())
        assert sorted(top.values(), reverse=True) == pytest.approx(expected.topk(3).values.tolist(), abs=1e-3)


def test_log_probabilities_of_chat_have_bytes_and_are_streamed_too(used: Used) -> None:
    whole = used.chat(logprobs=True, top_logprobs=2).choices[0]
    content = whole.logprobs.content
    assert b"".join(bytes(one.bytes) for one in content).decode() == whole.message.content
    assert all(one.logprob == one.top_logprobs[0].logprob and len(one.top_logprobs) == 2 for one in content)
    chunks = used.chat(logprobs=True, top_logprobs=2, stream=True)
    streamed = [one for chunk in chunks if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content]
    assert streamed == content
    assert used.chat(logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_log_probabilities_do_not_depend_on_settings_and_speculation(used: Used) -> None:
    def logs(**more: Any) -> list[float]:
        values: list[float] = used.complete(max_tokens=10, logprobs=0, **more).choices[0].logprobs.token_logprobs
        return values

    plain = logs()
    assert logs(extra_body={"speculate": False}) == plain
    assert logs(extra_body={"top_k": 1}, temperature=2) == plain


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_ends_the_text_before_it_and_tells_no_token_behind_it(used: Used, stream: bool) -> None:
    text = used.complete(max_tokens=30).choices[0].text
    stop = text[9:14]
    answer = used.complete(max_tokens=30, stop=[stop], logprobs=0, stream=stream)
    choices = [event.choices[0] for event in answer] if stream else answer.choices
    shown = "".join(choice.text for choice in choices)
    assert (shown, choices[-1].finish_reason) == (text[: text.index(stop)], "stop")
    told = "".join(token for choice in choices if choice.logprobs for token in choice.logprobs.tokens)
    assert told.startswith(shown)
    assert len(told) < len(shown) + len(stop) + 8


def test_bias_forbids_and_forces_tokens(used: Used) -> None:
    token = tokenizer().encode("x", add_special_tokens=False).ids[0]
    assert used.complete(max_tokens=4, logit_bias={str(token): 100}).choices[0].text == "xxxx"
    greedy = used.complete(max_tokens=1, logprobs=0)
    first = tokenizer().encode(greedy.choices[0].text, add_special_tokens=False).ids[0]
    assert used.complete(max_tokens=1, logit_bias={str(first): -100}).choices[0].text != greedy.choices[0].text


def test_frequency_penalty_keeps_a_text_from_repeating_itself(used: Used) -> None:
    def said(**more: Any) -> int:
        text: str = used.complete(max_tokens=16, **more).choices[0].text
        return text.count(" violin")

    assert said() == 2
    assert said(frequency_penalty=2.0) == 1


def test_seed_repeats_a_text_whoever_else_is_served(used: Used) -> None:
    asked = {"max_tokens": 20, "temperature": 1.2, "top_p": 0.95, "presence_penalty": 0.3, "seed": -5}
    alone = used.complete(**asked).choices[0].text
    beside = used.complete([PROMPT, "48 + 16 =", "def "], **asked).choices
    assert beside[0].text == alone
    assert used.complete(**asked, extra_body={"speculate": False}).choices[0].text == alone
    assert used.complete(**{**asked, "seed": 6}).choices[0].text != alone


def test_request_that_opts_out_is_not_drafted_for(used: Used) -> None:
    def drafts() -> float:
        lines = used.http.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(Metric.DRAFTS))

    before = drafts()
    text = used.complete(max_tokens=20, extra_body={"speculate": False}).choices[0].text
    assert drafts() == before
    assert used.complete(max_tokens=20).choices[0].text == text
    assert drafts() > before


# --- what goes wrong -------------------------------------------------------------------------------------------------

BAD_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages: "),
    ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages.0.role: "),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages.0"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools: "),
    ({"n": 2}, "n: "),
    ({"top_logprobs": 3}, "top_logprobs needs logprobs: true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: "),
    ({"max_completion_tokens": 7}, "max_tokens and max_completion_tokens differ"),
    ({"response_format": {"type": "json_object"}}, "response_format.type: "),
    ({"max_tokens": 510}, "This model's context holds 512 tokens"),
    ({"messages": [{"role": "user", "content": "word " * 600}]}, "This model's context holds 512 tokens"),
]


@pytest.mark.parametrize(("asked", "message"), BAD_CHATS, ids=lambda value: str(value)[:40])
def test_bad_chat_request_is_told_what_is_wrong_with_it(used: Used, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        used.chat(**asked)
    assert caught.value.type == "invalid_request_error"
    assert message in caught.value.message


def test_unknown_model_is_not_found(used: Used) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        used.chat(model="gpt-9")
    assert caught.value.code == "model_not_found"
    assert [model.id for model in used.client.models.list()] == ["tiny"]


def test_template_that_refuses_the_messages_is_quoted(used: Used) -> None:
    used.worker.template._template = replace_source(used, "{{ raise_exception('roles must alternate') }}")
    try:
        with pytest.raises(openai.BadRequestError, match="roles must alternate"):
            used.chat()
    finally:
        used.worker.template._template = replace_source(used, TEMPLATE)
    assert used.chat().choices[0].message.content


def replace_source(used: Used, source: str) -> Any:
    template = used.worker.template._template
    assert template
    return template._replace(source=source)


def test_target_without_a_template_says_where_to_ask(used: Used) -> None:
    template, used.worker.template._template = used.worker.template._template, None
    try:
        with pytest.raises(openai.BadRequestError, match="no chat template") as caught:
            used.chat()
        assert caught.value.code == "no_chat_template"
    finally:
        used.worker.template._template = template


def test_who_comes_when_too_many_wait_is_told_when_to_come_again(used: Used) -> None:
    """At most 8 run and 3 wait. What was taken in is answered, and then there is room again."""
    engine, free = used.worker.engine, used.worker.in_flight
    refused = used.http.get("/metrics").text
    assert f'{Metric.REFUSED}{{revision="rev-1"}} 0.0' in refused
    streams = [used.complete([PROMPT] * 4, max_tokens=300, stream=True, extra_body={"ignore_eos": True}) for _ in "abc"]
    wait_for(lambda: len(engine.engine.scheduler.running) == 8)
    with pytest.raises(openai.RateLimitError) as caught:
        used.complete(max_tokens=2)
    assert caught.value.response.headers["retry-after"] == "1"
    assert (caught.value.code, "3 requests and more wait" in caught.value.message) == ("overloaded", True)
    assert f'{Metric.REFUSED}{{revision="rev-1"}} 1.0' in used.http.get("/metrics").text
    for one in streams:
        one.close()
    wait_for(lambda: free.count == 0)
    assert used.complete(max_tokens=2).usage.completion_tokens == 2
    wait_for(lambda: engine.engine.pages.free == engine.engine.pages.count - 1)


@pytest.mark.parametrize("chunked", [False, True])
def test_request_that_is_too_large_is_refused_before_it_is_read(used: Used, chunked: bool) -> None:
    body = b'{"model": "tiny", "prompt": "' + b"x" * MAX_BODY_BYTES + b'"}'
    content = iter([body[: len(body) // 2], body[len(body) // 2 :]]) if chunked else body
    try:
        response = used.http.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    except httpx.WriteError:  # it hung up while we were still talking
        return
    assert (response.status_code, response.json()["error"]["type"]) == (413, "invalid_request_error")
    assert "8 MiB" in response.json()["error"]["message"]


# --- ids and log -----------------------------------------------------------------------------------------------------


def test_id_is_in_header_answer_and_log_and_no_text_is(used: Used, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        raw = used.client.completions.with_raw_response.create(model="tiny", prompt=PROMPT, max_tokens=5)
        wait_for(lambda: "Request cmpl-" in caplog.text)
    identifier = raw.headers["x-request-id"]
    answer: Any = raw.parse()
    assert answer.id == f"cmpl-{identifier}"
    line = next(record.getMessage() for record in caplog.records if "Request cmpl-" in record.getMessage())
    tokens = len(tokenizer().encode(PROMPT).ids)
    assert re.fullmatch(rf"Request {answer.id}: {tokens} prompt tokens, 5 generated, \d+\.\d\d s, length", line)
    names = ("tandem", "uvicorn", "fastapi")
    ours = [record.getMessage() for record in caplog.records if record.name.startswith(names)]
    assert ours
    assert not any("colour" in message or answer.choices[0].text.strip() in message for message in ours)


@pytest.mark.parametrize(("given", "taken"), [("trace-7.a_b", True), ("a b", False), ("x" * 65, False), ("", False)])
def test_clients_own_id_is_kept_where_it_is_harmless(used: Used, given: str, taken: bool) -> None:
    asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1}
    response = used.http.post("/v1/completions", json=asked, headers={"x-request-id": given})
    assert (response.headers["x-request-id"] == given) == taken
    assert response.json()["id"] == f"cmpl-{response.headers['x-request-id']}"
    assert used.http.get("/nowhere", headers={"x-request-id": given}).headers["x-request-id"]


def test_stream_that_fails_ends_with_an_error_that_the_client_raises(used: Used) -> None:
    weight = used.worker.engine.engine.runner.llama.model.embed_tokens.weight
    token = tokenizer().encode("x", add_special_tokens=False).ids[0]
    saved = weight[token].clone()
    with torch.inference_mode():
        weight[token] = math.nan
    try:
        with pytest.raises(openai.APIError, match="not finite"):
            list(used.complete(max_tokens=9, stream=True, logit_bias={str(token): 100}))
        with pytest.raises(openai.InternalServerError) as caught:
            used.complete(max_tokens=9, logit_bias={str(token): 100})
        assert caught.value.code == "request_failed"
    finally:
        with torch.inference_mode():
            weight[token] = saved
    assert used.http.get("/readyz").text == used.http.get("/health").text == "ok"
    assert json.loads(used.http.get("/status").text)["speculation_enabled"]
    assert used.complete(max_tokens=9).usage.completion_tokens == 9
