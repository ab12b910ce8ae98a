"""The OpenAI completions API as models: what is understood, and errors in its shape.

A field that would be ignored is refused unless its value is the one that changes nothing, so that nobody is served
something else than what was asked for.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAX_SEED = 2**63 - 1


class ApiError(Exception):
    """An answer in OpenAI's error shape."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StreamOptions(Strict):
    include_usage: bool = False


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Token = Annotated[int, Field(ge=0, strict=True)]
Stop = Annotated[str, Field(min_length=1)]


class CompletionRequest(Strict):
    model: str
    prompt: str | list[Token] | list[str] | list[list[Token]]
    max_tokens: int = Field(default=16, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=2, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-MAX_SEED, le=MAX_SEED)
    stop: Annotated[tuple[Stop, ...], BeforeValidator(_as_list), Field(max_length=4)] = ()
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    # Understood only with the value that changes nothing:
    n: Literal[1] = 1
    best_of: Literal[1] = 1
    echo: Literal[False] = False
    logprobs: None = None
    logit_bias: None = None
    presence_penalty: Literal[0] = 0
    frequency_penalty: Literal[0] = 0
    suffix: None = None

    @model_validator(mode="before")
    @classmethod
    def _null_means_default(cls, data: Any) -> Any:
        """As with OpenAI."""
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data

    def prompts(self) -> list[str | list[int]]:
        """One entry per choice."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        numbers = [item for item in self.prompt if isinstance(item, int)]
        return [numbers] if numbers or not self.prompt else [item for item in self.prompt if not isinstance(item, int)]


class Usage(Strict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, prompt_tokens: int, completion_tokens: int) -> Usage:
        total = prompt_tokens + completion_tokens
        return cls(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, total_tokens=total)


class Choice(Strict):
    index: int
    text: str
    logprobs: None = None
    finish_reason: Literal["stop", "length"] | None = None


class Completion(Strict):
    """A whole answer, or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int  # seconds since 1970
    model: str
    choices: list[Choice]
    usage: Usage | None = None
