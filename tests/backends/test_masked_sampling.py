"""Lists of tokens, bad words and grammars against the sampler's other wishes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("llguidance", reason="needs the extra `model`")

from stepwell.backends.constraint import barred_by_words, listed
from stepwell.backends.sampler import choose, is_plain, masked
from stepwell.core.sampling import GREEDY, SamplingParams

SIZE = 40
ENDS = frozenset([0, 1])

SAMPLING = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.integers(0, 5),
    top_p=st.sampled_from([0.5, 1.0]),
    min_p=st.sampled_from([0.0, 0.2]),
    presence_penalty=st.sampled_from([0.0, 1.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    min_tokens=st.integers(0, 6),
    seed=st.integers(0, 99),
)
TOKENS = st.lists(st.integers(0, SIZE - 1), min_size=3, max_size=9)


def draw(sampling: SamplingParams, tokens: list[int], scores: Any, allowed: Any = None) -> int:
    return choose(scores, sampling, tokens, 2, sampling.seed or 0, ENDS, allowed)


def scores_of(seed: int) -> Any:
    return np.random.default_rng(seed).normal(0, 3, SIZE).astype(np.float32)


@settings(max_examples=200, deadline=None)
@given(SAMPLING, TOKENS, st.integers(0, 999))
def test_to_allow_everything_changes_nothing(sampling: SamplingParams, tokens: list[int], seed: int) -> None:
    scores = scores_of(seed)
    assert draw(sampling, tokens, scores) == draw(sampling, tokens, scores, np.ones(SIZE, np.bool_))


@settings(max_examples=200, deadline=None)
@given(SAMPLING, TOKENS, st.integers(0, 999), st.sets(st.integers(0, SIZE - 1), min_size=1))
def test_what_is_not_allowed_never_comes(sampling: SamplingParams, tokens: list[int], seed: int, may: set[int]) -> None:
    """As if the model had never had the others; ends wait for ``min_tokens`` as long as there is anything else."""
    allowed = np.zeros(SIZE, np.bool_)
    allowed[sorted(may)] = True
    scores = scores_of(seed)
    chosen = draw(sampling, tokens, scores, allowed)
    assert chosen in may
    early = len(tokens) - 2 < sampling.min_tokens
    if early and may - ENDS:
        assert chosen not in ENDS
        may = may - ENDS
    rest = np.where(np.isin(np.arange(SIZE), sorted(may)), scores, np.float32(-np.inf))
    plain = SamplingParams(**{name: getattr(sampling, name) for name in sampling.__struct_fields__} | {"min_tokens": 0})
    assert chosen == draw(plain, tokens, rest)


def test_a_model_that_wishes_nothing_that_may_come_gets_some_of_it() -> None:
    allowed = np.zeros(SIZE, np.bool_)
    allowed[[5, 6]] = True
    nothing = np.full(SIZE, -np.inf, np.float32)
    for sampling in (GREEDY, SamplingParams(seed=3), SamplingParams(top_k=1)):
        assert draw(sampling, [7, 7], nothing, allowed) in (5, 6)
    assert int(masked(nothing, allowed).argmax()) == 5


def test_a_list_of_allowed_tokens() -> None:
    assert listed(SamplingParams(), SIZE) is None
    allowed = listed(SamplingParams(allowed_token_ids=(3, 9, SIZE + 2)), SIZE)
    assert allowed is not None
    assert np.flatnonzero(allowed).tolist() == [3, 9]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=4), st.lists(st.integers(0, 3), max_size=9)
)
def test_no_bad_word_is_ever_whole(words: list[list[int]], answer: list[int]) -> None:
    barred = barred_by_words(words, answer)
    for token in range(4):
        after = [*answer, token]
        whole = any(after[len(after) - len(word) :] == word for word in words)
        assert whole == (token in barred)


def test_bad_words_look_at_the_answer_and_not_at_the_prompt() -> None:
    sampling = SamplingParams(temperature=0.0, bad_words=((4, 5), (8,)))
    scores = np.zeros(SIZE, np.float32)
    scores[[5, 8, 9]] = 3, 4, 2
    assert not is_plain(sampling, 9)
    assert draw(sampling, [1, 4], scores) == 5, "the prompt ends with half of it"
    assert draw(sampling, [1, 1, 4], scores) == 9
    everything = SamplingParams(temperature=0.0, bad_words=tuple((token,) for token in range(SIZE)))
    assert draw(everything, [1, 4], scores) == 8, "what leaves nothing is no word"
