"""How SGLang and vLLM are started, and what their metrics say, version by version."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from tandem_operator.api import Spec
from tandem_operator.api.status import Counts
from tandem_operator.engines import Adapter, Launch, adapter_of
from tandem_operator.engines.builtin import Builtin
from tandem_operator.engines.formulas import same_version
from tandem_operator.plan.analysis.evidence import increment
from tandem_operator.plan.revisions import recipe
from unit.world import spec


def spec_of(engine: str, version: str, **more: Any) -> Spec:
    return spec(engine={"type": engine, "version": version, **more}, speculation={"draftLength": 3})


def started(engine: str, version: str, alone: bool = False, grace_seconds: int = 60, **more: Any) -> list[str]:
    wanted = spec_of(engine, version, **more)
    pod = wanted.pod.model_copy(update={"termination_grace_period_seconds": grace_seconds})
    wanted = wanted.model_copy(update={"pod": pod})
    launch = Launch(recipe(wanted, "pair", None), "r1", "/models/target", "" if alone else "/models/drafter")
    return adapter(engine, version).arguments(launch)


def adapter(engine: str, version: str) -> Adapter:
    wanted = spec_of(engine, version)
    return adapter_of(wanted.engine, wanted.speculation)


def last(arguments: list[str], flag: str) -> str:
    """As argparse takes it: the last one counts."""
    words = [word for argument in arguments for word in ([argument] if argument[0] == "{" else argument.split("=", 1))]
    return next(words[i + 1] for i in reversed(range(len(words))) if words[i] == flag)


@pytest.mark.parametrize(("asked", "told"), [(3, "3"), ("auto", "auto")])
def test_the_builtin_engine_hears_the_draft_length_as_it_was_asked_for(asked: object, told: str) -> None:
    launch = Launch(recipe(spec(speculation={"draftLength": asked}), "pair", None), "r1", "/target", "/drafter")
    assert last(Builtin().arguments(launch), "--draft-length") == told


@pytest.mark.parametrize(
    ("engine", "version", "flag"),
    [
        ("builtin", None, "--tensor-parallel"),
        ("sglang", "0.5.23", "--tensor-parallel-size"),
        ("vllm", "0.33.0", "--tensor-parallel-size"),
    ],
)
def test_each_engine_is_told_over_how_many_gpus_it_spreads(engine: str, version: str | None, flag: str) -> None:
    asked = {"type": engine, "version": version, "tensorParallel": 4}
    wanted = spec(engine=asked, resources={"limits": {"nvidia.com/gpu": 4}})
    launch = Launch(recipe(wanted, "pair", None), "r1", "/target", "/drafter")
    assert last(adapter_of(wanted.engine, wanted.speculation).arguments(launch), flag) == "4"


def test_sglang_drafts_a_chain_of_the_length_that_the_spec_asks_for() -> None:
    arguments = started("sglang", "0.5.23")
    assert last(arguments, "--speculative-algorithm") == "EAGLE3"
    assert last(arguments, "--speculative-num-steps") == "3"
    assert last(arguments, "--speculative-eagle-topk") == "1"
    assert last(arguments, "--speculative-num-draft-tokens") == "4"
    assert last(arguments, "--speculative-draft-model-path") == "/models/drafter"
    assert last(arguments, "--served-model-name") == "pair"
    assert "--enable-metrics" in arguments


def test_vllm_gets_one_json_of_its_speculation() -> None:
    arguments = started("vllm", "0.33.0", contextLength=8192)
    config = json.loads(last(arguments, "--speculative-config"))
    assert config == {"method": "eagle3", "model": "/models/drafter", "num_speculative_tokens": 3}
    assert arguments[0] == "/models/target"
    assert last(arguments, "--max-model-len") == "8192"


def test_vllm_is_told_to_let_requests_end_within_the_grace_period() -> None:
    assert last(started("vllm", "0.33.0", grace_seconds=600), "--shutdown-timeout") == "593"
    assert last(started("vllm", "0.26.0", grace_seconds=10), "--shutdown-timeout") == "3", "0 would abort them"
    own = started("vllm", "0.33.0", args=["--shutdown-timeout=5"])
    assert last(own, "--shutdown-timeout") == "5", "the user's own"


@pytest.mark.parametrize("version", ["0.20.0", "0.33.1rc1"])
def test_a_vllm_that_may_not_know_the_option_is_not_given_it(version: str) -> None:
    assert not any("--shutdown-timeout" in argument for argument in started("vllm", version))


@pytest.mark.parametrize(
    ("engine", "args"),
    [
        ("sglang", ["--host=1.2.3.4", "--model-path", "/elsewhere", "--speculative-draft-model-path=/elsewhere"]),
        ("vllm", ["--host=1.2.3.4", "--speculative-config", '{"model": "/elsewhere"}']),
        ("vllm", ["--host=1.2.3.4", "--spec-model=/elsewhere"]),
    ],
)
def test_what_ties_an_engine_to_the_operator_cannot_be_changed(engine: str, args: list[str]) -> None:
    arguments = started(engine, "0.5.23" if engine == "sglang" else "0.33.0", args=args)
    assert last(arguments, "--host") == "$(POD_IP)"
    drafter = last(arguments, "--speculative-draft-model-path" if engine == "sglang" else "--speculative-config")
    assert "/models/drafter" in drafter
    assert "/elsewhere" not in drafter


@pytest.mark.parametrize(
    "args",
    [
        ["--speculative-config", '{"method": "eagle", "parallel_drafting": true}'],
        ['--speculative-config={"method": "eagle", "parallel_drafting": true}'],
        ["--speculative-config.method=eagle", "--speculative-config.parallel_drafting", "true"],
        ["--spec-method", "eagle", "-sc", '{"parallel_drafting": true}'],
    ],
)
def test_keys_of_the_users_own_are_kept_in_whatever_form_they_come(args: list[str]) -> None:
    config = json.loads(last(started("vllm", "0.33.0", args=["--seed=1", *args]), "--speculative-config"))
    assert (config["method"], config["parallel_drafting"], config["model"]) == ("eagle", True, "/models/drafter")


@pytest.mark.parametrize("text", ["{", "[1]", "eagle3"])
def test_a_speculative_config_that_is_no_json_object_is_left_for_the_validation_to_refuse(text: str) -> None:
    assert f"--speculative-config={text}" in started("vllm", "0.33.0", args=[f"--speculative-config={text}"])


@pytest.mark.parametrize(
    ("engine", "version", "args"),
    [
        ("sglang", "0.5.23", ["--tp=2", "--speculative-num-steps", "4", "--speculative-adaptive", "--seed=1"]),
        ("vllm", "0.33.0", ["--tp=2", "--speculative-config", '{"num_speculative_tokens": 4}', "--seed=1"]),
    ],
)
def test_without_its_drafter_an_engine_hears_nothing_of_speculation(engine: str, version: str, args: list[str]) -> None:
    arguments = started(engine, version, alone=True, args=args)
    assert not [argument for argument in arguments if "spec" in argument or "drafter" in argument or argument == "4"]
    assert {"--tp=2", "--seed=1"} <= set(arguments)


@pytest.mark.parametrize(
    ("engine", "version", "ready"),
    [("sglang", "0.5.20", "/ready"), ("sglang", "0.5.18", "/health"), ("vllm", "0.33.0", "/health")],
)
def test_readiness_is_asked_where_the_version_answers_it(engine: str, version: str, ready: str) -> None:
    assert adapter(engine, version).paths.ready == ready


@pytest.mark.parametrize(
    ("engine", "version", "image"),
    [
        ("sglang", "0.5.23", "lmsysorg/sglang:v0.5.23"),
        ("vllm", "0.33.0+cu130", "vllm/vllm-openai:v0.33.0"),
        ("builtin", "", ""),
    ],
)
def test_the_image_follows_from_the_version(engine: str, version: str, image: str) -> None:
    fields = {"type": engine} | ({"version": version} if version else {})
    wanted = spec(engine=fields)
    assert adapter_of(wanted.engine, wanted.speculation).image == image


SGLANG = """# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 2.0
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{model_name="m",tp_rank="0"} 2.5
sglang:spec_accept_length{model_name="m",tp_rank="1"} 0.0
# TYPE sglang:spec_num_steps gauge
sglang:spec_num_steps{model_name="m",tp_rank="0"} 3.0
sglang:spec_num_steps{model_name="m",tp_rank="1"} 0.0
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 600.0
sglang:generation_tokens_total{is_streaming="false",model_name="m"} 410.0
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{is_streaming="true",model_name="m"} 6.0
sglang:num_requests_total{is_streaming="false",model_name="m"} 4.0
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{model_name="m"} 400.0
"""


def test_sglangs_counters() -> None:
    """10 requests, of whose 1010 tokens 10 came from their prompts and 400 were bonus tokens."""
    counts = adapter("sglang", "0.5.23").read(SGLANG).counts
    assert (counts.drafts, counts.accepted, counts.requests, counts.generated) == (400, 600, 10, 1010)
    rate = counts.accepted0 / counts.drafts
    assert rate + rate**2 + rate**3 == pytest.approx(600 / 400, abs=0.01)


def test_sglangs_counters_appear_with_the_first_request() -> None:
    gauges = "\n".join(line for line in SGLANG.splitlines() if "_total" not in line)
    assert adapter("sglang", "0.5.23").read(gauges).counts == Counts()


def test_sglang_without_speculation_has_requests_and_no_drafts() -> None:
    text = "\n".join(line for line in SGLANG.splitlines() if "spec_" not in line)
    counts = adapter("sglang", "0.5.23").read(text).counts
    assert (counts.drafts, counts.accepted, counts.requests, counts.generated) == (0, 0, 10, 1010)


def test_a_request_that_ends_without_a_token_does_not_look_like_a_restart() -> None:
    before = adapter("sglang", "0.5.23").read(SGLANG).counts
    aborted = SGLANG.replace('is_streaming="true",model_name="m"} 6.0', 'is_streaming="true",model_name="m"} 7.0')
    moved = increment(before, adapter("sglang", "0.5.23").read(aborted).counts)
    assert (moved.requests, moved.drafts, moved.accepted, moved.generated) == (1, 0, 0, 0)


@pytest.mark.parametrize(
    ("version", "said"),
    [("0.5.12", "counts no drafts .*last accept length was 2.50"), ("0.5.24", "counts no drafts"), ("0.6.0", "0.6.0")],
)
def test_an_sglang_without_counters_or_that_nobody_looked_at_gives_no_evidence(version: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        adapter("sglang", version).read(SGLANG)


@pytest.mark.parametrize(
    ("version", "rate", "accept_length"),
    [("0.5.5", 0.5, 2.0), ("0.5.10", 0.25, 1.0), ("0.5.10", 0.5, 2.0), ("0.5.11", 0.0, 1.0), ("0.5.11", 0.5, 2.5)],
)
def test_a_rate_is_shown_as_the_accept_length_that_it_is_in_that_version(
    version: str, rate: float, accept_length: float
) -> None:
    text = f"# TYPE sglang:spec_accept_rate gauge\nsglang:spec_accept_rate 0{rate:g}\n".replace(" 0", " ")
    with pytest.raises(ValueError, match=f"last accept length was {accept_length:.2f}"):
        adapter("sglang", version).read(text)


@pytest.mark.parametrize("text", ["", "# TYPE up gauge\nup 1\n"])
def test_metrics_of_something_else_are_no_evidence(text: str) -> None:
    for engine, version in (("sglang", "0.5.23"), ("vllm", "0.33.0")):
        with pytest.raises(ValueError, match="/metrics has no"):
            adapter(engine, version).read(text)


VLLM = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 700.0
vllm:generation_tokens_total{engine="1",model_name="m"} 300.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 3.0
vllm:request_success_total{engine="1",finished_reason="length",model_name="m"} 4.0
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 200.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 100.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 350.0
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="m"} 150.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 160.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 70.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 100.0
"""


def test_vllms_counters_are_summed_over_its_ranks() -> None:
    read = adapter("vllm", "0.33.0").read(VLLM)
    counts = read.counts
    assert (counts.drafts, counts.accepted, counts.accepted0) == (300, 500, 230)
    assert (counts.requests, counts.generated, read.running) == (7, 1000, 3)


@pytest.mark.parametrize("version", ["0.11.2", "0.34.0", "0.26.0rc1"])
def test_a_vllm_that_nobody_looked_at_gives_no_evidence(version: str) -> None:
    with pytest.raises(ValueError, match=f"what vLLM {version} counts is not known"):
        adapter("vllm", version).read(VLLM)


@pytest.mark.parametrize(
    ("said", "wanted", "same"),
    [
        ("0.5.23", "0.5.23", True),
        ("0.33.0+cu130", "0.33.0", True),
        ("v0.33.0", "0.33.0", True),
        ("0.5.23.post1", "0.5.23", False),
        ("0.5.22", "0.5.23", False),
    ],
)
def test_the_version_that_an_engine_says(said: str, wanted: str, same: bool) -> None:
    assert same_version(said, wanted) is same


@pytest.mark.parametrize("version", ["0.5.23"])
def test_arguments_survive_the_way_to_the_validation(version: str) -> None:
    """They travel as one string, quoted as for a shell."""
    arguments = started("vllm", version, args=['--hf-overrides={"a": "b c"}', "--stop", "it's"])
    assert shlex.split(shlex.join(arguments)) == arguments
