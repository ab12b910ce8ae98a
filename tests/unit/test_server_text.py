"""Text comes out in pieces that join to what decoding at once gives, up to a stop string."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tandem_worker.server.text import StopStrings, TextStream
from unit.serving import tokenizer


def pieces(prompt: list[int], tokens: list[int], cuts: list[int]) -> list[str]:
    stream = TextStream(tokenizer(), prompt)
    edges = sorted({0, len(tokens), *(cut % (len(tokens) + 1) for cut in cuts)})
    spans = list(itertools.pairwise(edges))
    return [stream.push(tokens[start:end], last=end == len(tokens)) for start, end in spans]


@given(st.text(min_size=1, max_size=40), st.lists(st.integers(0, 200), max_size=10))
def test_pieces_join_to_the_text(text: str, cuts: list[int]) -> None:
    tokens = tokenizer().encode(text, add_special_tokens=False).ids
    assert "".join(pieces(tokenizer().encode("Q:").ids, tokens, cuts)) == text


def test_half_a_character_is_held_back() -> None:
    tokens = tokenizer().encode("a€b", add_special_tokens=False).ids
    assert len(tokens) == 5  # the euro sign is three byte tokens
    assert pieces([], tokens, [1, 2, 3, 4]) == ["a", "", "", "€", "b"]


def test_a_text_that_ends_in_half_a_character_says_so() -> None:
    tokens = tokenizer().encode("a€", add_special_tokens=False).ids[:-1]
    assert "".join(pieces([], tokens, [1, 2])).startswith("a\N{REPLACEMENT CHARACTER}")


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 30), max_size=8),
)
def test_stop_strings_do_not_depend_on_the_pieces(text: str, stops: list[str], cuts: list[int]) -> None:
    found = [text.index(stop) for stop in stops if stop in text]
    watch, shown, stopped = StopStrings(stops), "", False
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        piece, stopped = watch.push(text[start:end], last=end == len(text))
        shown += piece
        if stopped:
            break
    assert stopped == bool(found)
    if not found:
        assert shown == text
    else:  # what completes first ends the text, so a stop string that begins earlier but ends in a later piece may lose
        assert any(shown == text[: text.index(stop)] for stop in stops if stop in text)
        assert not any(stop in shown for stop in stops)


def test_stop_string_across_pieces_is_never_shown() -> None:
    watch = StopStrings(["\n\n", "END"])
    assert watch.push("line\n", last=False) == ("line", False)
    assert watch.push("E", last=False) == ("\n", False)
    assert watch.push("NE", last=False) == ("EN", False)
    assert watch.push("ND of it", last=False) == ("", True)
