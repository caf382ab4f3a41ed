"""A prompt that was computed before is not computed again, and nobody can tell from the answer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch", reason="needs the extra `model`")

from stepwell.core.sampling import SamplingParams
from stepwell.tests.backends.driving import make, serve
from stepwell.tests.backends.saturation import House, check_identity, crowd_of, pages_of
from stepwell.tests.backends.tiny import SHAPE, write_gguf
from stepwell.tests.helpers.quick import diagonal, quick_for

FREE = SamplingParams(temperature=0.0, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.1, seed=5, ignore_eos=True)
RESTLESS = "stepwell.tests.backends.restless:Restless"
LENGTHS = (15, 16, 17, 63, 64, 65)
TURNS = [(15, 1), (16, 1), (30, 3), (33, 15), (40, 60)]
"""Tokens of a prompt, and of its answer."""
KEEPERS = [("prefix", 0), ("radix", 1), ("radix", 4)]
"""Allocators that find what was computed, and how many tokens a key of theirs is of; 0: of a page's."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("tiny") / "model.gguf")


def prompt(length: int, seed: int = 0) -> list[int]:
    """Prompts of one seed begin alike."""
    dice = random.Random(seed)
    return [dice.randrange(SHAPE.vocab_size) for _ in range(length)]


def keeping(allocator: str, key_tokens: int) -> dict[str, Any]:
    return {"allocator": allocator, "keeping": {"key_tokens": key_tokens} if key_tokens else {}}


def reused(length: int, key_tokens: int) -> int:
    """All but one token, as far as there are keys; 0: keys are of 16 tokens, as pages are."""
    return keyed(length - 1, key_tokens)


def keyed(tokens: int, key_tokens: int, page_size: int = 16) -> int:
    size = key_tokens or page_size
    return tokens // size * size


@pytest.mark.parametrize(("length", "sampling", "keeper"), diagonal(LENGTHS, [FREE, SEEDED], KEEPERS))
def test_pc_1_wholly_cached_prompts_answer_as_cold_ones(
    model: Path, length: int, sampling: SamplingParams, keeper: tuple[str, int]
) -> None:
    asked = [(prompt(length), 8, sampling)] * 3 + [(prompt(length + 1), 8, sampling)]
    cold = serve(make(model, page_size=16), asked, at_once=False)
    warm = serve(make(model, page_size=16), asked, at_once=False, **keeping(*keeper))
    assert warm.answers == cold.answers
    assert warm.answers[0] == warm.answers[1] == warm.answers[2]
    assert warm.cached == [[0], *([reused(each, keeper[1])] for each in (length, length, length + 1))]
    assert cold.cached == [[0]] * 4


@pytest.mark.parametrize(("turn", "sampling", "keeper"), diagonal(TURNS, [FREE, SEEDED], KEEPERS))
def test_a_second_turn_finds_the_first_answer_and_answers_as_a_cold_one(
    model: Path, turn: tuple[int, int], sampling: SamplingParams, keeper: tuple[str, int]
) -> None:
    length, says = turn
    (answer,) = serve(make(model, page_size=16), [(prompt(length), says, sampling)]).answers
    turns = [(prompt(length), says, sampling), (prompt(length) + answer + prompt(9, seed=1), 8, sampling)]
    cold = serve(make(model, page_size=16), turns, at_once=False)
    warm = serve(make(model, page_size=16), turns, at_once=False, **keeping(*keeper))
    assert warm.answers == cold.answers
    assert warm.cached == [[0], [reused(length + says, keeper[1])]]


@pytest.mark.parametrize(("length", "keeper"), diagonal(LENGTHS, KEEPERS))
def test_pc_1_a_preempted_request_finds_its_own_prompt(model: Path, length: int, keeper: tuple[str, int]) -> None:
    asked = [(prompt(length, seed), 40, FREE) for seed in range(3)]
    alone = serve(make(model, page_size=16), asked, at_once=False)
    backend = make(model, page_size=16, pages=3 * -(-(length + 40) // 16))
    sent = serve(backend, asked, policy=RESTLESS, options={"percent": 30.0}, **keeping(*keeper))
    assert sent.answers == alone.answers
    again = [found for each in sent.cached for found in each[1:]]
    assert len(again) == sent.preemptions["recompute"] > 2
    assert max(again) == keyed(length, keeper[1])


@pytest.mark.parametrize(("chunk", "page_size", "keeper"), diagonal([16, 64, 1000], [4, 16], KEEPERS[::-1]))
def test_ou_4_a_warm_prefix_changes_no_answer(model: Path, chunk: int, page_size: int, keeper: tuple[str, int]) -> None:
    """One prompt of 37 tokens: cold and alone; after one that begins alike; then among strangers and its like."""
    sizes: dict[str, Any] = {
        "page_size": page_size,
        "pages": 1024 // page_size,
        "token_budget": chunk,
        "running_limit": 16,
    }
    limits: dict[str, Any] = {"token_budget": chunk, "running_limit": 16}
    mine = (prompt(37), 12, FREE)
    (alone,) = serve(make(model, **sizes), [mine], **limits).answers
    like = (prompt(33) + prompt(9, seed=1), 12, FREE)
    limits |= keeping(*keeper)
    warm = serve(make(model, **sizes), [like, mine], at_once=False, **limits)
    assert warm.answers[1] == alone
    assert warm.cached[1] == [keyed(33, keeper[1], page_size)]
    crowd = [like, *((prompt(20 + 3 * seed, seed), 12, FREE) for seed in range(2, 9)), mine, like, mine]
    among = serve(make(model, **sizes), crowd, **limits)
    assert among.answers[-3] == among.answers[-1] == alone
    assert among.answers[0] == among.answers[-2] == warm.answers[0]


@pytest.mark.parametrize("keeper", quick_for(KEEPERS, (KEEPERS[0], KEEPERS[2]).__contains__))
def test_every_answer_at_saturation_is_the_one_alone(model: Path, keeper: tuple[str, int]) -> None:
    """Prompts that begin alike, in a pool of an eighth of what they need, swapped and recomputed at random."""
    asked = crowd_of(48, SHAPE.vocab_size, prompts=(1, 12), answers=(8, 20), seed=2)
    dice = random.Random(3)
    begins = [prompt(30, seed) for seed in range(3)]
    asked = [
        msgspec.structs.replace(each, prompt=dice.choice(begins)[: dice.randint(0, 30)] + each.prompt) for each in asked
    ]
    pages = pages_of(asked, 9, 4)
    limits = {"token_budget": 96, "running_limit": 48}
    backend = make(model, pages=pages, host_pages=pages // 2, page_size=4, **limits)
    crowds = []
    for depth in (1, 2):
        settings = {**limits, "depth": depth, "options": {"percent": 50.0}}
        house = House(backend, RESTLESS, settings, **keeping(*keeper))
        crowds.append(house.serve(asked))
        assert house.preemptions["swap"] > 20, house
        assert house.preemptions["recompute"] > 20, house
        assert house.cached > 500, house
    check_identity(asked, crowds, House(make(model, pages=200, page_size=16), scheduler={"running_limit": 16}))
