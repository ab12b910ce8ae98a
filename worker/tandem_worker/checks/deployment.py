"""How the engine will be started, as far as it can defeat the pair: its arguments and environment."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tandem_worker.checkpoint import strict_json
from tandem_worker.checkpoint.errors import error, warning
from tandem_worker.engines import Engine
from tandem_worker.finding import Finding

Json = strict_json.Json


@dataclass(frozen=True)
class Deployment:
    """`values` holds what Tandem looks at under its own names, as the arguments give them (text, or a JSON value)."""

    values: Mapping[str, Json] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def number(self, name: str) -> int | None:
        value = self.values.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        return int(value) if isinstance(value, str) and value.isdecimal() else None

    def text(self, name: str) -> str:
        value = self.values.get(name)
        return value if isinstance(value, str) else ""


def truth(value: str) -> bool:
    """Of a variable or an argument, as engines read them."""
    return value.strip().lower() in ("1", "true", "yes", "y", "on")


NUMBERS = ("context_length", "tensor_parallel", "pipeline_parallel", "steps", "top_k", "draft_tokens", "draft_length")
JSON_KEYS = {  # of vLLM's --speculative-config
    "method": "algorithm",
    "model": "drafter",
    "num_speculative_tokens": "draft_length",
    "draft_tensor_parallel_size": "draft_tensor_parallel",
    "parallel_drafting": "parallel_drafting",
    "max_model_len": "draft_context_length",
    "rejection_sample_method": "rejection",
}
JSON_TYPES: Mapping[str, type] = {
    "method": str,
    "model": str,
    "num_speculative_tokens": int,
    "draft_tensor_parallel_size": int,
    "parallel_drafting": bool,
    "max_model_len": int,
    "rejection_sample_method": str,
}
COMMON = {  # understood for every engine, with or without a table of its own
    "context_length": ("--context-length", "--max-model-len"),
    "tensor_parallel": ("--tensor-parallel-size", "--tensor-parallel", "--tp-size", "--tp", "-tp"),
    "pipeline_parallel": ("--pipeline-parallel-size", "--pp-size", "--pp", "-pp"),
}


def read_deployment(
    engine: Engine, arguments: Sequence[str], env: Mapping[str, str], context_length: int | None = None
) -> Deployment:
    """Raises nothing: an argument that can not be meant is a finding."""
    names = {
        flag: name for source in (COMMON, engine.table.arguments) for name, flags in source.items() for flag in flags
    }
    values: dict[str, Json] = {}
    findings: list[Finding] = []
    for flag, value in _pairs(arguments):
        name = names.get(flag.replace("_", "-"), names.get(flag))
        if name == "speculative_json":
            values |= _from_json(flag, value, findings)
        elif name is not None:
            values[name] = value
            if name in NUMBERS and not (value.isdecimal() and int(value)):
                findings.append(_wrong_type(flag, value, "a whole number above zero"))
    if context_length is not None:
        values["context_length"] = context_length
    return Deployment(values, env, tuple(findings))


def split_arguments(text: str) -> list[str]:
    """As a shell would. Raises ValueError on an open quote."""
    return shlex.split(text)


def split_environment(pairs: Iterable[str]) -> dict[str, str]:
    """Of NAME=VALUE."""
    return dict(pair.partition("=")[::2] for pair in pairs)


def split_indexes(text: str) -> tuple[int, ...]:
    """Of capture indexes such as `2,30,58` or `[2, 30, 58]`. Raises ValueError, which says so."""
    try:
        return tuple(int(part) for part in text.strip("[] ").split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not a list of capture indexes such as 2,30,58") from None


def _pairs(arguments: Sequence[str]) -> Iterable[tuple[str, str]]:
    """(flag, value); a flag without a value is "true"."""
    waiting = ""
    for argument in arguments:
        if argument.startswith("-") and not argument.lstrip("-").isdecimal():
            if waiting:
                yield waiting, "true"
            flag, equals, value = argument.partition("=")
            waiting = "" if equals else flag
            if equals:
                yield flag, value
        elif waiting:
            yield waiting, argument
            waiting = ""
    if waiting:
        yield waiting, "true"


def _from_json(flag: str, text: str, findings: list[Finding]) -> dict[str, Json]:
    try:
        value = strict_json.parse(text.encode())
    except strict_json.JsonError as failure:
        findings.append(_wrong_type(flag, text, f"one JSON object ({failure})"))
        return {}
    if not isinstance(value, Mapping):
        findings.append(_wrong_type(flag, text, "one JSON object"))
        return {}
    values: dict[str, Json] = {}
    for key, item in value.items():
        key = key.replace("-", "_")
        wanted = JSON_TYPES.get(key)
        if wanted is None:
            continue
        if type(item) is not wanted or (wanted is int and item < 1):  # type: ignore[operator]
            expected = "a whole number above zero" if wanted is int else f"a {wanted.__name__}"
            findings.append(_wrong_type(f"{flag} {key}", repr(item), expected))
        else:
            values[JSON_KEYS[key]] = item
    return values


def _wrong_type(flag: str, value: str, expected: str) -> Finding:
    return error(
        "TDM-ARGUMENT-TYPE",
        f"The engine argument {flag} is {value}; expected {expected}.",
        where=flag,
        found=value,
        expected=expected,
        action="Correct the argument.",
    )


def check_deployment(deployment: Deployment, engine: Engine, drafter_named: str) -> Iterable[Finding]:
    """What shows in the arguments alone. `drafter_named` is the drafter's class, for the sentence."""
    yield from deployment.findings
    algorithm = deployment.text("algorithm")
    wanted = "EAGLE3" if engine.name == "sglang" else "eagle3"
    if algorithm and algorithm != wanted and (engine.name == "vllm" or algorithm.upper() != "EAGLE3"):
        yield error(
            "TDM-ALGORITHM",
            f"The engine is told to use the algorithm {algorithm}, and the drafter ({drafter_named}) is an "
            "EAGLE-3 one: "
            "the target's streams are not captured, fc is skipped by a test of widths, and the accept length is 1.00 "
            "without any error.",
            where=", ".join(engine.table.arguments.get("algorithm", ("algorithm",))),
            found=algorithm,
            expected=wanted,
            action=f"Set the algorithm to {wanted}.",
        )
    steps, top_k, tokens = (deployment.number(name) for name in ("steps", "top_k", "draft_tokens"))
    if top_k == 1 and steps is not None and tokens is not None and tokens != steps + 1:
        yield warning(
            "TDM-DRAFT-TOKENS",
            f"With top-k 1 and {steps} steps only {steps + 1} draft tokens can be used; {tokens} are asked for.",
            where="--speculative-num-draft-tokens",
            found=tokens,
            expected=steps + 1,
            action=f"Set --speculative-num-draft-tokens {steps + 1}, or a larger top-k.",
        )
    yield from _faked(deployment, engine)
    threshold = deployment.text("accept_threshold")
    if threshold.replace(".", "", 1).isdecimal() and float(threshold) < 1:
        yield warning(
            "TDM-LOSSY-ACCEPTANCE",
            f"An accept threshold of {threshold} lets through tokens that the target would not have sampled.",
            where="--speculative-accept-threshold",
            found=threshold,
            expected="1.0",
            action="Leave the threshold at 1.0 to keep the target's own distribution.",
        )


def _faked(deployment: Deployment, engine: Engine) -> Iterable[Finding]:
    """Switches for benchmarks: acceptance is then what somebody chose, and no measurement means anything."""
    told = {name: deployment.env.get(name, "") for name in engine.table.arguments.get("fake_acceptance_env", ())}
    if deployment.text("rejection") == "synthetic":
        told["rejection_sample_method"] = "synthetic"
    for name, value in told.items():
        if value and not (_number(value) is not None and (_number(value) or 0) <= 0):  # 0 and less switch it off
            yield error(
                "TDM-ACCEPTANCE-FAKED",
                f"The deployment sets {name} to {value}: the engine then makes its accept length up.",
                where=name,
                found=value,
                expected="unset",
                action=f"Remove {name} from the engine's arguments or environment.",
            )
    if deployment.text("rejection") == "fly":
        yield warning(
            "TDM-LOSSY-ACCEPTANCE",
            "rejection_sample_method fly lets through tokens that the target would not have sampled.",
            where="rejection_sample_method",
            found="fly",
            expected="standard",
            action="Leave rejection_sample_method out to keep the target's own distribution.",
        )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
