"""The tiny pair is a real instrument: held-out prompts are held out, and the committed table is that of the files."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tiny_pair import grammar
from tiny_pair.bigram import bigram_table
from tiny_pair.corpus import documents, pattern
from tiny_pair.evidence import design_effect, distinct_share, drafts_to_tell
from tiny_pair.measure import Pair, check_replay, fingerprints
from tiny_pair.prompts import make_prompts, read_prompts
from tiny_pair.replay import PromptTally, Tally, greedy_texts, replay
from tiny_pair.results import Measured
from tiny_pair.train import DRAFT_LENGTH, NEW_TOKENS, PROMPTS, TRAIN_CHARACTERS, TRAIN_SEED
from tiny_pair.wirings import FOREIGN, RIGHT, right_wiring, wirings

FOLDER = Path(__file__).parents[2] / "examples" / "tiny-pair"
HELD_OUT_TEMPLATES = [template for templates in grammar.HELD_OUT.values() for template in templates]
TRAINING_TEMPLATES = [template for templates in grammar.TRAINING.values() for template in templates]

FEW_PROMPTS = 12
TOLERANCE = 0.1  # of position-0 acceptance over FEW_PROMPTS against all of them: about two standard errors


@pytest.fixture(autouse=True)
def _one_thread_without_gradients() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def training_text() -> str:
    return "\n".join(documents(TRAIN_SEED, TRAIN_CHARACTERS))


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair.load(FOLDER)


@pytest.fixture(scope="module")
def measured() -> Measured:
    return Measured.model_validate_json((FOLDER / "measured.json").read_text())


def test_the_same_seed_writes_the_same_text() -> None:
    assert documents(1, 20_000) == documents(1, 20_000)
    assert documents(1, 20_000) != documents(2, 20_000)


@pytest.mark.parametrize("template", HELD_OUT_TEMPLATES)
def test_no_held_out_template_occurs_in_the_training_text(template: str, training_text: str) -> None:
    assert pattern(template).search(training_text) is None


def test_every_template_is_found_where_it_is_used(training_text: str) -> None:
    """The test above can only tell if the patterns do find their templates."""
    assert [t for t in TRAINING_TEMPLATES if pattern(t).search(training_text) is None] == []
    held_out = "\n".join(documents(2, 200_000, grammar.HELD_OUT))
    assert [t for t in HELD_OUT_TEMPLATES if pattern(t).search(held_out) is None] == []


def test_the_prompts_are_made_of_held_out_templates_alone(pair: Pair) -> None:
    prompts = read_prompts(FOLDER / "prompts.jsonl")
    assert prompts == make_prompts(pair.tokenizer, PROMPTS, grammar.HELD_OUT)
    sections = [section for prompt in prompts for section in prompt.prompt.split("\n\n")[:-1]]
    assert len(sections) > PROMPTS
    strangers = [s for s in sections if not any(pattern(t).fullmatch(s) for t in HELD_OUT_TEMPLATES)]
    assert strangers == []


def test_no_prompt_begins_as_a_training_document_does(training_text: str) -> None:
    for prompt in read_prompts(FOLDER / "prompts.jsonl"):
        assert prompt.prompt not in training_text


def test_the_committed_table_is_that_of_the_committed_weights(measured: Measured) -> None:
    assert fingerprints(FOLDER) == measured.sha256
    assert (FOLDER / "measured.md").read_text() == measured.markdown()


def test_a_few_prompts_measured_again_agree_with_the_table(pair: Pair, measured: Measured) -> None:
    prompts = [pair.tokenizer.encode(p.prompt).ids for p in read_prompts(FOLDER / "prompts.jsonl")[:FEW_PROMPTS]]
    starts = [len(prompt) for prompt in prompts]
    texts = greedy_texts(pair.target, prompts, NEW_TOKENS)
    table = wirings(right_wiring(pair.target, pair.drafter), pair.foreign)
    for name in (RIGHT, "ids +1", "ids -1", "d2t read as ids", "midlayer random", FOREIGN):
        tally = replay(table[name], texts, starts, DRAFT_LENGTH)
        assert tally.rates[0] == pytest.approx(measured.held_out.row(name).position0, abs=TOLERANCE), name


def test_decoding_draft_by_draft_gives_the_text_and_counts_of_the_replay(pair: Pair) -> None:
    prompts = [pair.tokenizer.encode(p.prompt).ids for p in read_prompts(FOLDER / "prompts.jsonl")[:2]]
    right = right_wiring(pair.target, pair.drafter)
    for prompt, text in zip(prompts, greedy_texts(pair.target, prompts, 48), strict=True):
        check_replay(right, text, len(prompt))


def test_right_wiring_predicts_and_every_mistake_shows(measured: Measured) -> None:
    held_out = measured.held_out
    right, bigram = held_out.row(RIGHT), held_out.row("bigram drafter")
    assert right.accept_length >= 3.89
    assert right.position0 >= 0.851
    assert right.position0 > 2 * bigram.position0
    assert held_out.text.distinct_4grams_worst >= 0.5  # no continuation is a loop
    for row in held_out.rows:
        assert row is right or (row.drafts_to_tell is not None and row.position0 < right.position0), row.wiring
    for name in ("ids +1", "ids -1", "[embedding, a, b]", "d2t read as ids", "midlayer random", "lm_head random"):
        assert held_out.row(name).position0_of_right < 0.25, name
    assert held_out.row(FOREIGN).accept_length < 1.05


def test_design_effect_of_prompts_that_are_all_or_nothing() -> None:
    """20 drafts at rate 1/2: the variance of a prompt's count is 50, the binomial's 2.5."""
    tally = Tally((PromptTally(10, (10,)), PromptTally(10, (0,))))
    assert design_effect(tally) == pytest.approx(20)
    assert design_effect(Tally((PromptTally(10, (0,)), PromptTally(9, (0,))))) == 0


def test_drafts_to_tell_a_dead_drafter() -> None:
    """Three drafts are all refused with probability 0.05^3 > 1e-4, four with less."""
    assert drafts_to_tell(0.95, 0.0) == 4
    assert drafts_to_tell(0.5, 0.5) is None


def test_a_loop_has_few_distinct_4grams() -> None:
    assert distinct_share([[1, 2, 3, 4, 5]]) == 1
    assert distinct_share([[1, 2] * 10, [1, 2] * 10]) == pytest.approx(2 / 34)


def test_a_bigram_drafter_proposes_the_most_frequent_follower() -> None:
    assert bigram_table(torch.tensor([1, 2, 1, 2, 1, 3]), 4).tolist() == [0, 2, 1, 0]
