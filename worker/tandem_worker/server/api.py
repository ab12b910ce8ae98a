"""What OpenAI's completions and chat completions have in common: errors, the settings of a request, usage.

A field that would be ignored is refused unless its value is the one that changes nothing, so that nobody is served
something else than what was asked for. Beside OpenAI's fields there are those that vLLM and SGLang also take (`top_k`,
`min_p`, `repetition_penalty`, `ignore_eos`), and `speculate`.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tandem_worker.engine.request import Sampling

MAX_SEED = 2**63 - 1
MAX_BIASES = 300
"""As with OpenAI."""


class ApiError(Exception):
    """An answer in OpenAI's error shape."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StreamOptions(Strict):
    include_usage: bool = False
    continuous_usage_stats: bool = False  # vLLM's: usage so far in every event


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


COLDEST = 1e-5
"""Temperatures below are 0: nothing but the most probable token has a chance, and logits over them may be infinite."""

Token = Annotated[int, Field(ge=0, strict=True)]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class GenerationRequest(Strict):
    """Settings of both kinds of request."""

    model: str
    temperature: float = Field(default=1.0, ge=0, le=2, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-MAX_SEED, le=MAX_SEED)
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: dict[Annotated[int, Field(ge=0)], Bias] = Field(default={}, max_length=MAX_BIASES)
    stop: Annotated[tuple[Stop, ...], BeforeValidator(_as_list), Field(max_length=4)] = ()
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    user: str | None = None
    # Not OpenAI's:
    top_k: int = Field(default=0, ge=-1, description="0 or -1: all tokens")
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=10)
    ignore_eos: bool = False
    speculate: bool = True
    # Understood only with the value that changes nothing:
    n: Literal[1] = 1

    @model_validator(mode="before")
    @classmethod
    def _null_means_default(cls, data: Any) -> Any:
        """As with OpenAI."""
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _options_belong_to_streams(self) -> Self:
        if "stream_options" in self.model_fields_set and not self.stream:
            raise ValueError("stream_options may only be given with stream: true")
        return self

    def sampling(self, max_tokens: int, logprobs: int | None, index: int = 0) -> Sampling:
        """Prompts of one request draw independently, also with a seed."""
        return Sampling(
            max_tokens,
            self.temperature if self.temperature >= COLDEST else 0,
            self.top_p,
            secrets.randbits(63) if self.seed is None else self.seed + index,
            top_k=max(self.top_k, 0),
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=tuple(self.logit_bias.items()),
            logprobs=logprobs,
            ignore_eos=self.ignore_eos,
            speculate=self.speculate,
        )


class Usage(Strict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, prompt_tokens: int, completion_tokens: int) -> Usage:
        total = prompt_tokens + completion_tokens
        return cls(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, total_tokens=total)


Ending = Literal["stop", "length"]
"""OpenAI's finish reasons that occur here."""
