"""The draft rounds of one simulated request.

A draft is accepted up to the first position that is not. Drafts of one request are alike: position k has a rate of
its own per request, from a Beta distribution with mean p and variance rho p (1 - p), so that two drafts of a request
have correlation rho at position 0. The random numbers hang on the seed and the request's number alone, not on what
else runs.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

NEGLIGIBLE = 1e-6  # nearer to an end than this, `random.betavariate` does not come back


@dataclass(frozen=True)
class Round:
    drafted: int  # 0: a plain step
    accepted: int

    @property
    def emitted(self) -> int:
        return self.accepted + 1


def request_rate(rng: random.Random, mean: float, correlation: float) -> float:
    if correlation < NEGLIGIBLE or not NEGLIGIBLE < mean < 1 - NEGLIGIBLE:
        return mean
    strength = (1 - correlation) / correlation
    return rng.betavariate(mean * strength, (1 - mean) * strength)


class Drafts:
    """The rounds of one request, drawn one after another."""

    def __init__(self, seed: int, number: int, acceptance: Sequence[float], correlation: float, length: int) -> None:
        self._rng = random.Random(f"{seed}:{number}")
        means = [acceptance[min(k, len(acceptance) - 1)] for k in range(length)]
        self._rates = [request_rate(self._rng, mean, correlation) for mean in means]

    def round(self, most_tokens: int) -> Round:
        """A round that emits at most `most_tokens` >= 1: near its end a request drafts less, at last nothing."""
        rates = self._rates[: most_tokens - 1]
        accepted = next((k for k, rate in enumerate(rates) if self._rng.random() >= rate), len(rates))
        return Round(len(rates), accepted)


PLAIN = Round(drafted=0, accepted=0)
