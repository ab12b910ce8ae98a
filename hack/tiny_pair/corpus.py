"""Deterministic text with structure at several ranges.

Near: words and grammar. Middle: JSON, code, arithmetic. Far: a document fixes facts about two people once, and every
later section repeats them, so that much of the text can be predicted and the first mention of a fact cannot.
"""

import random
import re
import string
from collections.abc import Mapping, Sequence
from typing import TypeVar

from tiny_pair import grammar

Templates = Mapping[str, Sequence[str]]
T = TypeVar("T")


class Chooser:
    """Choices made from `Random.random()` alone, the one method that is stable across Python versions."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def below(self, n: int) -> int:
        return int(self.rng.random() * n)

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in range(count)]


class Document:
    """One document: fixed facts about two people, and sections of several kinds that tell them."""

    def __init__(self, choose: Chooser) -> None:
        self.choose = choose
        self.people = choose.sample(grammar.NAMES, 2)
        self.turn = choose.below(2)
        self.facts = {person: self._facts(person) for person in self.people}

    def _facts(self, person: str) -> dict[str, str]:
        pick, thing = self.choose.pick, self.choose.pick(grammar.THINGS)
        return {
            "p": person,
            "thing": thing,
            "Thing": thing.capitalize(),
            "city": pick(grammar.CITIES),
            "job": pick(grammar.JOBS),
            "colour": pick(grammar.COLOURS),
            "size": pick(grammar.SIZES),
            "place": pick(grammar.PLACES),
            "purpose": pick(grammar.PURPOSES),
            "age": str(20 + self.choose.below(60)),
        }

    def _choices(self) -> dict[str, str]:
        """What a section chooses anew."""
        choose = self.choose
        does, did = choose.pick(grammar.VERBS)
        n, start, step = 1 + choose.below(9), choose.below(10), 1 + choose.below(9)
        day, month = choose.below(7), choose.below(12)
        chosen = {
            "does": does,
            "did": did,
            "day": grammar.DAYS[day],
            "month": grammar.MONTHS[month],
            "variable": choose.pick(grammar.VARIABLES),
            "n": str(n),
            "twice": str(2 * n),
            "words": " ".join(choose.sample(grammar.THINGS + grammar.COLOURS + grammar.SIZES, 5)),
            "numbers": ", ".join(str(start + step * i) for i in range(8)),
            "days": ", ".join(grammar.DAYS[(day + i) % 7] for i in range(5)),
            "months": ", ".join(grammar.MONTHS[(month + i) % 12] for i in range(5)),
        }
        for i in "123":
            x, y = choose.below(50), choose.below(50)
            chosen |= {f"x{i}": str(x), f"y{i}": str(y), f"z{i}": str(x + y)}
        return chosen

    def _amounts(self, thing: str) -> dict[str, str]:
        a = 2 + self.choose.below(5)
        b = 1 + self.choose.below(min(5, a - 1))
        a_word, b_word, more, left = (grammar.NUMBERS[i] for i in (a, b, a + b, a - b))
        return {"a": a_word, "b": b_word, "more": more, "left": f"{left} {thing}{'s' * (a - b > 1)}"}

    def section(self, template: str) -> str:
        """The two people take turns, mostly."""
        other = self.people[self.turn % 2]
        self.turn += 1 if self.choose.below(8) else 2
        facts = self.facts[self.people[self.turn % 2]]
        slots = facts | self._choices() | self._amounts(facts["thing"])
        return template.format_map(slots | {"q": other, "other_thing": self.facts[other]["thing"]})

    def text(self, templates: Templates) -> str:
        """10 to 17 sections, mostly in the usual order of kinds."""
        kinds, at = grammar.KINDS, self.choose.below(len(grammar.KINDS))
        sections: list[str] = []
        for _ in range(10 + self.choose.below(8)):
            sections.append(self.section(self.choose.pick(templates[kinds[at % len(kinds)]])))
            at += 1 if self.choose.below(8) else 1 + self.choose.below(len(kinds))
        text = "\n\n".join(sections) + "\n"
        return re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", text)  # a apple -> an apple


def documents(seed: int, characters: int, templates: Templates = grammar.TRAINING) -> list[str]:
    """Documents of about 1,200 characters each, `characters` in all."""
    choose, texts, size = Chooser(random.Random(seed)), [], 0
    while size < characters:
        texts.append(Document(choose).text(templates))
        size += len(texts[-1])
    return texts


def pattern(template: str) -> re.Pattern[str]:
    """Matches the text that a template makes, whatever its slots hold, as whole lines."""
    parts = []
    for literal, slot, _, _ in string.Formatter().parse(template):
        parts.append(re.sub(r"\b([Aa])\\ $", r"\1n?\\ ", re.escape(literal)))  # the article of the slot that follows
        parts.append(r"[^\n]+?" if slot else "")
    return re.compile("^" + "".join(parts) + "$", re.MULTILINE)
