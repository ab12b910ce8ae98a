"""The measured table as data and as Markdown."""

from typing import Self

from pydantic import BaseModel, ConfigDict

from tiny_pair.evidence import ERROR, design_effect, drafts_to_tell
from tiny_pair.replay import Tally


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(Frozen):
    """Acceptance of one wiring over all prompts."""

    wiring: str
    drafts: int
    accepted: tuple[int, ...]  # per position
    accept_length: float
    position0: float
    position0_of_right: float  # against the right wiring's
    drafts_to_tell: int | None  # independent drafts that tell it from the right wiring; None for the right one itself
    design_effect: float

    @classmethod
    def of(cls, wiring: str, tally: Tally, right: Tally) -> Self:
        p, q = right.rates[0], tally.rates[0]
        return cls(
            wiring=wiring,
            drafts=tally.drafts,
            accepted=tally.accepted,
            accept_length=round(tally.accept_length, 4),
            position0=round(q, 4),
            position0_of_right=round(q / p, 4),
            drafts_to_tell=None if tally is right else drafts_to_tell(p, q),
            design_effect=round(design_effect(tally), 2),
        )

    def cells(self) -> tuple[str, ...]:
        return (
            self.wiring,
            f"{self.accept_length:.2f}",
            str(self.drafts),
            " ".join(f"{count / self.drafts:.3f}" for count in self.accepted),
            f"{self.position0_of_right:.2f}",
            str(self.drafts_to_tell or "-"),
            f"{self.design_effect:.1f}",
        )


class Text(Frozen):
    """The target's greedy continuations that the rounds were counted on."""

    prompts: int
    new_tokens: int
    decoded_round_by_round: int  # prompts decoded draft by draft too, with the same text and counts
    distinct_4grams: float  # over all continuations together
    distinct_4grams_worst: float  # of the one continuation that repeats itself most


class PromptSet(Frozen):
    templates: str  # of the grammar: held out, or those of training
    text: Text
    rows: tuple[Row, ...]

    def row(self, wiring: str) -> Row:
        return next(row for row in self.rows if row.wiring == wiring)


class Measured(Frozen):
    """Content of measured.json."""

    versions: dict[str, str]
    sha256: dict[str, str]  # of the files that were measured, by path below the pair's folder
    draft_length: int
    held_out: PromptSet  # other seed, other templates: prompts.jsonl
    same_templates: PromptSet  # other seed, the templates of training

    def markdown(self) -> str:
        sets = "\n".join(prompt_set_markdown(s) for s in (self.held_out, self.same_templates))
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        files = "\n".join(f"- `{name}` sha256 `{digest}`" for name, digest in self.sha256.items())
        return f"""# What the tiny pair measures

Written by `python -m tiny_pair.measure`; do not edit. Greedy chain drafts of length {self.draft_length}, float32, CPU
({versions}).

- tau: tokens per target forward, 1 + accepted / drafts
- acceptance at positions: accepted at position k per draft
- of right: position-0 acceptance against the right wiring's
- drafts to tell: least number of independent drafts at which an exact binomial threshold on position 0 tells the
  wiring from the right one with both errors at most {ERROR:g}. Drafts of one prompt are not independent: multiply by
  the design effect
- design effect: variance of position-0 acceptance over prompts against that of independent drafts

{sets}
## Files

{files}
"""


def prompt_set_markdown(measured: PromptSet) -> str:
    text = measured.text
    header = ("wiring", "tau", "drafts", "acceptance at positions 0..", "of right", "drafts to tell", "design effect")
    rows = [header, tuple("---" for _ in header), *(row.cells() for row in measured.rows)]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in rows)
    return f"""## Prompts of {measured.templates}

{text.prompts} prompts of another seed than training, {text.new_tokens} new tokens each. Distinct 4-grams within a
continuation: {text.distinct_4grams_worst:.0%} in the one that repeats itself most; over all continuations together:
{text.distinct_4grams:.0%}. {text.decoded_round_by_round} prompts were also decoded round by round, draft and verify:
same text and counts as the replay.

{table}
"""
