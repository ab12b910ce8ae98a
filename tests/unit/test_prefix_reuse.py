"""A text that begins like an earlier one does not compute its rows again, and is the same text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_worker.engine.engine import Engine
from tandem_worker.engine.pages import PAGE, Pages, extend_names
from tandem_worker.engine.request import Finish, Sampling
from unit.pairs import drafter_files, target_files
from unit.serving import Text, accepted, finish_all, generate, load_pair, make_engine, prompts, submit

NEW_TOKENS = 24
LONG = [token for prompt in prompts()[:12] for token in prompt][: 3 * PAGE + 5]


def behind(*endings: Sequence[int]) -> list[list[int]]:
    return [[*LONG, *ending] for ending in endings]


ENDINGS = ([5], [9, 9], [30, 31, 32])


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """Each by an engine that has seen nothing before."""
    return [generate(make_engine(speculate=False), [prompt], NEW_TOKENS)[0] for prompt in behind(*ENDINGS)]


def ended(engine: Engine, some: Sequence[Sequence[int]]) -> list[Text]:
    texts = [submit(engine, list(prompt), Sampling(NEW_TOKENS)) for prompt in some]
    finish_all(engine)
    return texts


def test_a_text_that_begins_like_an_earlier_one_is_the_same_text_and_drafted_for_as_well(
    expected: list[list[int]],
) -> None:
    engine = make_engine()
    texts = [text for prompt in behind(*ENDINGS) for text in ended(engine, [prompt])]
    assert [text.tokens for text in texts] == expected
    assert [text.request.reused for text in texts] == [0, 3 * PAGE, 3 * PAGE]
    fresh = make_engine()
    ended(fresh, behind(ENDINGS[2]))
    assert accepted(engine)[-len(accepted(fresh)) :] == accepted(fresh)
    assert engine.pages.free == engine.pages.count - 1


def test_texts_share_a_beginning_while_both_run(expected: list[list[int]]) -> None:
    engine = make_engine(max_batch=3)
    first = submit(engine, behind(ENDINGS[0])[0], Sampling(NEW_TOKENS))
    while first.request.generated < 3:
        engine.step()
    others = [submit(engine, prompt, Sampling(NEW_TOKENS)) for prompt in behind(*ENDINGS[1:])]
    engine.step()
    assert others[0].request.pages[:3] == others[1].request.pages[:3] == first.request.pages[:3]
    engine.end(first.request, Finish.CANCELLED)
    finish_all(engine)
    assert [text.tokens for text in others] == expected[1:]
    assert [text.request.reused for text in others] == [3 * PAGE, 3 * PAGE]
    assert engine.pages.free == engine.pages.count - 1


def test_what_was_generated_is_found_again_by_the_next_turn_of_a_chat() -> None:
    engine = make_engine()
    first = submit(engine, LONG, Sampling(2 * PAGE))
    finish_all(engine)
    said = [*LONG, *first.tokens, 7, 8]
    (second,) = ended(engine, [said])
    assert second.request.reused == (len(LONG) + len(first.tokens) - 1) // PAGE * PAGE
    assert second.tokens == generate(make_engine(speculate=False), [said], NEW_TOKENS)[0]


def test_only_whole_pages_with_the_same_next_token_are_found() -> None:
    """The drafter's row of a page's last position is made with the token behind it."""
    engine = make_engine()
    ended(engine, [LONG])
    (other,) = ended(engine, [[*LONG[: 2 * PAGE], (LONG[2 * PAGE] + 1) % 50, 4, 4]])
    assert other.request.reused == PAGE
    (short,) = ended(engine, [LONG[:PAGE]])
    assert short.request.reused == 0, "a row must be left to decide the next token"


def test_pages_without_the_drafters_rows_are_not_found(expected: list[list[int]]) -> None:
    engine = make_engine()
    engine.switch(False)
    texts = ended(engine, behind(ENDINGS[0]))
    engine.switch(True)
    texts += ended(engine, behind(ENDINGS[1]))
    assert [text.request.reused for text in texts] == [0, 0]
    engine.switch(False)
    texts += ended(engine, behind(ENDINGS[2]))
    assert texts[2].request.reused == 3 * PAGE
    assert [text.tokens for text in texts] == expected


def test_room_is_made_by_forgetting_what_was_used_least_recently() -> None:
    engine = make_engine(max_batch=1, kv_cache_tokens=8 * PAGE)
    other = [(token + 1) % 50 for token in LONG]
    ended(engine, [LONG])
    ended(engine, [other])
    assert ended(engine, [[*LONG, 3]])[0].request.reused == 3 * PAGE, "four pages each: both fit"
    ended(engine, [[7] * (3 * PAGE + 5)])
    assert ended(engine, [[*LONG, 4]])[0].request.reused == 3 * PAGE
    assert ended(engine, [[*other, 4]])[0].request.reused < 3 * PAGE


def test_nothing_is_found_where_that_is_not_wanted(expected: list[list[int]]) -> None:
    engine = make_engine(prefix_reuse=False)
    texts = [text for prompt in behind(*ENDINGS) for text in ended(engine, [prompt])]
    assert [text.tokens for text in texts] == expected
    assert [text.request.reused for text in texts] == [0, 0, 0]


POISON = 60


def test_a_text_that_meets_a_nan_leaves_nothing_to_find_and_what_it_shared_goes_on(tmp_path: Path) -> None:
    target = target_files()
    target.tensors["model.embed_tokens.weight"][POISON] = float("nan")
    pair = load_pair(target.write(tmp_path / "target"), drafter_files().write(tmp_path / "drafter"))
    beginning = [token % 50 for token in range(PAGE + 5)]
    healthy = [*beginning, 5]
    wanted = generate(make_engine(speculate=False, pair=pair), [healthy], 12)[0]
    engine = make_engine(pair=pair, max_batch=2)
    running = submit(engine, healthy, Sampling(12))
    while not running.request.generated:
        engine.step()
    bad = [*beginning, POISON, *beginning[:20]]
    failed = submit(engine, bad, Sampling(4))
    finish_all(engine)
    assert failed.finish is Finish.FAILED
    assert failed.request.reused == PAGE
    assert running.tokens == wanted
    assert generate(engine, [healthy], 12) == [wanted]
    assert engine.pages.free == engine.pages.count - 1


class Owners:
    """Five texts of an alphabet so small that they often begin alike."""

    def __init__(self) -> None:
        self.pages = Pages(1000)
        self.owned = [list[int]() for _ in range(5)]
        self.texts = [list[int]() for _ in range(5)]

    def begin(self, who: int, text: list[int]) -> None:
        self.pages.release(self.owned[who])
        names: list[bytes] = []
        extend_names(names, text)
        found = self.pages.found(names)
        self.pages.share(found)
        self.owned[who], self.texts[who] = found, text
        if not self.pages.reserve(self.owned[who], len(text)):
            self.end(who)

    def compute(self, who: int, rows: int) -> None:
        names: list[bytes] = []
        extend_names(names, self.texts[who])
        self.pages.name(self.owned[who][: rows // PAGE], names)

    def end(self, who: int) -> None:
        self.pages.release(self.owned[who])
        self.texts[who] = []


TEXTS = st.builds(
    lambda parts, tail: [token for part in parts for token in [part] * (PAGE // 2)] + tail,
    st.lists(st.integers(0, 1), max_size=12),
    st.lists(st.integers(0, 1), max_size=3),
)


@given(st.lists(st.tuples(st.integers(0, 4), TEXTS, st.integers(0, 400), st.integers(0, 9)), max_size=40))
@settings(max_examples=80)
def test_no_page_is_lost_and_none_has_two_owners_but_for_the_same_text(
    steps: list[tuple[int, list[int], int, int]],
) -> None:
    world = Owners()
    for who, text, rows, what in steps:
        if what < 5:
            world.begin(who, text)
        elif what < 8:
            world.compute(who, rows)
        elif what == 8:
            world.pages.forget(world.owned[who])
        else:
            world.end(who)
        held: dict[int, set[tuple[int, ...]]] = {}
        for owned, own in zip(world.owned, world.texts, strict=True):
            assert len(owned) == len(set(owned)), "no text holds a page twice"
            for i, page in enumerate(owned):
                held.setdefault(page, set()).add(tuple(own[: (i + 1) * PAGE + 1]))
        assert 0 not in held
        assert len(held) == world.pages.count - 1 - world.pages.free
        assert all(world.pages.used(page) for page in held)
        owners = [page for owned in world.owned for page in owned]
        assert all(len(texts) == 1 for page, texts in held.items() if owners.count(page) > 1)
