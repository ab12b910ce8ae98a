"""OpenAI's completions: what is asked, and the shape of answers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tandem_worker.server.api import Ending, GenerationRequest, Strict, Token, Usage
from tandem_worker.server.job import Job, Piece, Told
from tandem_worker.server.vocabulary import Vocabulary


class CompletionRequest(GenerationRequest):
    prompt: str | list[Token] | list[str] | list[list[Token]]
    max_tokens: int = Field(default=16, ge=1)
    logprobs: int | None = Field(default=None, ge=0, le=5)
    # Understood only with the value that changes nothing:
    best_of: Literal[1] = 1
    echo: Literal[False] = False
    suffix: None = None

    def prompts(self) -> list[str | list[int]]:
        """One entry per choice."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        numbers = [item for item in self.prompt if isinstance(item, int)]
        return [numbers] if numbers or not self.prompt else [item for item in self.prompt if not isinstance(item, int)]


class Logprobs(Strict):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class Choice(Strict):
    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: Ending | None = None


class Completion(Strict):
    """A whole answer, or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int  # seconds since 1970
    model: str
    choices: list[Choice]
    usage: Usage | None = None


class CompletionForm:
    """See `forms`."""

    def __init__(self, job: Job, vocabulary: Vocabulary, model: str, created: int, logprobs: int | None) -> None:
        self._job, self._vocabulary, self._model, self._created = job, vocabulary, model, created
        self._logprobs = logprobs

    def opening(self) -> list[Completion]:
        return []

    def event(self, piece: Piece, usage: Usage | None) -> Completion:
        return self._completion([self._choice(piece.choice, piece.text, piece.tokens, piece.ending)], usage)

    def closing(self, usage: Usage) -> Completion:
        return self._completion([], usage)

    def whole(self, pieces: list[Piece]) -> Completion:
        choices = []
        for index in range(len(self._job.answers)):
            own = [piece for piece in pieces if piece.choice == index]
            tokens = [told for piece in own for told in piece.tokens]
            choices.append(self._choice(index, "".join(piece.text for piece in own), tokens, own[-1].ending))
        return self._completion(choices, self._job.usage)

    def _choice(self, index: int, text: str, tokens: list[Told], ending: Ending | None) -> Choice:
        logprobs = self._written(tokens) if self._logprobs is not None else None
        return Choice(index=index, text=text, logprobs=logprobs, finish_reason=ending)

    def _written(self, tokens: list[Told]) -> Logprobs:
        text = self._vocabulary.text
        return Logprobs(
            tokens=[text(told.logprob.token) for told in tokens],
            token_logprobs=[told.logprob.value for told in tokens],
            top_logprobs=[
                # The chosen token is always among them; the more probable of two that read alike wins.
                {text(told.logprob.token): told.logprob.value}
                | {text(token): value for token, value in reversed(told.logprob.top)}
                for told in tokens
            ],
            text_offset=[told.offset for told in tokens],
        )

    def _completion(self, choices: list[Choice], usage: Usage | None) -> Completion:
        job = self._job
        return Completion(id=job.identifier, created=self._created, model=self._model, choices=choices, usage=usage)
