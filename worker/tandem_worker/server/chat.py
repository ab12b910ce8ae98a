"""OpenAI's chat completions: what is asked, the prompt that the target's template makes of it, the shape of answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tandem_worker.checkpoint import CheckpointError
from tandem_worker.probe.template import Sandbox, Template
from tandem_worker.server.api import ApiError, Ending, GenerationRequest, Strict, Usage
from tandem_worker.server.job import Job, Piece, Told
from tandem_worker.server.vocabulary import Vocabulary


class TextPart(Strict):
    type: Literal["text"]
    text: str


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    name: str | None = None

    def plain(self) -> dict[str, Any]:
        """As templates expect it: text only, and the older name of the role."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": text, **({"name": self.name} if self.name else {})}


class ResponseFormat(Strict):
    type: Literal["text"]


class ChatRequest(GenerationRequest):
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
    max_completion_tokens: int | None = Field(default=None, ge=1, description="None: up to the end of the context")
    max_tokens: int | None = Field(default=None, ge=1, description="the older name of max_completion_tokens")
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=20)
    # Understood only with the value that changes nothing:
    response_format: ResponseFormat | None = None
    modalities: tuple[Literal["text"]] | None = None
    store: Literal[False] = False

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        both = self.max_tokens, self.max_completion_tokens
        if None not in both and len(set(both)) > 1:
            raise ValueError("max_tokens and max_completion_tokens differ; give one of them")
        return self

    @property
    def longest(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class ChatTemplate:
    """The target's template, in its sandbox. `template` is None where the target has none."""

    def __init__(self, template: Template | None) -> None:
        self._template, self._sandbox = template, Sandbox()

    def prompt(self, messages: tuple[Message, ...]) -> str:
        """Up to where the assistant begins. Waits for another process. Raises ApiError."""
        if self._template is None:
            message = "This model has no chat template. Ask /v1/completions, or add chat_template.jinja to the target."
            raise ApiError(400, message, "messages", "no_chat_template")
        try:
            plain = [message.plain() for message in messages]
            return self._sandbox.render(self._template, [plain], add_generation_prompt=True)[0]
        except CheckpointError as failure:
            raise ApiError(400, failure.finding.message, "messages", "chat_template_failed") from None

    def close(self) -> None:
        self._sandbox.close()


class TopLogprob(Strict):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class Logprobs(Strict):
    content: list[TokenLogprob]
    refusal: None = None


class AssistantMessage(Strict):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Strict):
    index: Literal[0] = 0
    message: AssistantMessage
    logprobs: Logprobs | None = None
    finish_reason: Ending | None


class ChatCompletion(Strict):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int  # seconds since 1970
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Delta(Strict):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(Strict):
    index: Literal[0] = 0
    delta: Delta
    logprobs: Logprobs | None = None
    finish_reason: Ending | None = None


class ChatChunk(Strict):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class ChatForm:
    """See `forms`."""

    def __init__(self, job: Job, vocabulary: Vocabulary, model: str, created: int, logprobs: bool) -> None:
        self._vocabulary, self._logprobs, self._job = vocabulary, logprobs, job
        self._model, self._created = model, created

    def opening(self) -> list[ChatChunk]:
        return [self._chunk([ChunkChoice(delta=Delta(role="assistant", content=""))])]

    def event(self, piece: Piece, usage: Usage | None) -> ChatChunk:
        choice = ChunkChoice(
            delta=Delta(content=piece.text), logprobs=self._written(piece.tokens), finish_reason=piece.ending
        )
        return self._chunk([choice], usage)

    def closing(self, usage: Usage) -> ChatChunk:
        return self._chunk([], usage)

    def whole(self, pieces: list[Piece]) -> ChatCompletion:
        choice = ChatChoice(
            message=AssistantMessage(content="".join(piece.text for piece in pieces)),
            logprobs=self._written([told for piece in pieces for told in piece.tokens]),
            finish_reason=pieces[-1].ending,
        )
        return ChatCompletion(
            id=self._job.identifier,
            created=self._created,
            model=self._model,
            choices=[choice],
            usage=self._job.usage,
        )

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | None = None) -> ChatChunk:
        job = self._job
        return ChatChunk(id=job.identifier, created=self._created, model=self._model, choices=choices, usage=usage)

    def _written(self, tokens: list[Told]) -> Logprobs | None:
        if not self._logprobs:
            return None
        return Logprobs(
            content=[
                TokenLogprob(
                    **self._top(told.logprob.token, told.logprob.value).model_dump(),
                    top_logprobs=[self._top(token, value) for token, value in told.logprob.top],
                )
                for told in tokens
            ]
        )

    def _top(self, token: int, value: float) -> TopLogprob:
        words = self._vocabulary
        return TopLogprob(token=words.text(token), logprob=value, bytes=list(words.bytes(token)))
