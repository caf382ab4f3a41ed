"""The sampler against a naive one, and the laws of its draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.backends.draws import uniform
from stepwell.backends.sampler import choose, logprob
from stepwell.core.sampling import SamplingParams

VOCABULARY = 40


def naive(
    logits: list[float], it: SamplingParams, tokens: list[int], prompt: int, barred: set[int]
) -> dict[int, float]:
    """The distribution of the next token, by the definitions, one token at a time."""
    scores = dict(enumerate(logits))
    output = tokens[prompt:]
    for token in scores:
        if token in tokens:
            scores[token] *= it.repetition_penalty if scores[token] <= 0 else 1 / it.repetition_penalty
        if token in output:
            scores[token] -= it.presence_penalty + it.frequency_penalty * output.count(token)
        scores[token] += it.logit_bias.get(token, 0)
    if len(output) < it.min_tokens:
        scores = {token: score for token, score in scores.items() if token not in barred}
    if it.temperature < 1e-5:
        return {max(scores, key=lambda token: (scores[token], -token)): 1.0}
    top = max(scores.values())
    weights = {token: math.exp((score - top) / it.temperature) for token, score in scores.items()}
    order = sorted(weights, key=lambda token: (-weights[token], token))
    kept = order[: it.top_k] if it.top_k else order
    mass, total = 0.0, sum(weights[token] for token in kept)
    nucleus: list[int] = []
    for token in kept:
        if nucleus and mass >= it.top_p * total:
            break
        nucleus.append(token)
        mass += weights[token]
    final = {token: weights[token] for token in nucleus if weights[token] >= it.min_p}
    return {token: weight / sum(final.values()) for token, weight in final.items()}


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-9, 0.1, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 39, 40, 1000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    presence_penalty=st.sampled_from([0.0, 1.2, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.dictionaries(st.integers(0, VOCABULARY - 1), st.sampled_from([-100.0, 100.0, 0.5]), max_size=3),
    min_tokens=st.sampled_from([0, 5]),
)


@settings(deadline=None, max_examples=150)
@given(PARAMS, st.integers(0, 1 << 30), st.lists(st.integers(0, VOCABULARY - 1), min_size=2, max_size=12))
def test_every_draw_is_one_that_the_definitions_allow(it: SamplingParams, seed: int, tokens: list[int]) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, VOCABULARY).astype(np.float32)
    barred = {0, 7}
    allowed = naive(logits.tolist(), it, tokens, 2, barred)
    for attempt in range(10):
        token = choose(logits, it, tokens, 2, attempt, frozenset(barred))
        assert allowed.get(token, 0) > 0, (token, allowed)


@pytest.mark.parametrize("it", [SamplingParams(), SamplingParams(temperature=0.7, top_p=0.9, top_k=20, min_p=0.01)])
def test_draws_follow_the_distribution(it: SamplingParams) -> None:
    logits = np.random.default_rng(1).normal(0, 2, VOCABULARY).astype(np.float32)
    expected = naive(logits.tolist(), it, [1, 2], 2, set())
    draws = 20_000
    counts = np.bincount([choose(logits, it, [1, 2], 2, seed, frozenset()) for seed in range(draws)])
    for token, share in expected.items():
        error = math.sqrt(share * (1 - share) / draws)
        seen = counts[token] / draws if token < len(counts) else 0.0
        assert abs(seen - share) < 5 * error + 1e-9, (token, seen, share)


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    draws = {(seed, position): uniform(seed, position) for seed in range(-50, 50) for position in range(100)}
    assert len(set(draws.values())) == len(draws)
    assert all(0 <= each < 1 for each in draws.values())
    values = np.array([draws[key] for key in sorted(draws)])
    assert abs(values.mean() - 0.5) < 0.01
    for lag in (1, 100):
        assert abs(np.corrcoef(values[:-lag], values[lag:])[0, 1]) < 0.04
    # written down once: a change would change every seeded answer of everybody
    assert [round(uniform(7, position), 12) for position in (0, 1, 1000)] == PINNED


PINNED = [0.721508180605, 0.431592958604, 0.900170496145]


def test_in_4_temperatures_at_both_ends_give_no_nonsense() -> None:
    logits = np.array([1.0, 5.0, 4.9999, -1e30, 3.0], np.float32)
    with np.errstate(all="raise", over="ignore", under="ignore"):
        for cold in (1e-9, 1e-5, 1e-4, 1e-300):
            assert choose(logits, SamplingParams(temperature=cold), [1], 1, 3, frozenset()) == 1
        for hot in (1e4, 1e300):
            assert 0 <= choose(logits, SamplingParams(temperature=hot), [1], 1, 3, frozenset()) < 5
        masked = SamplingParams(temperature=1e-4, min_tokens=5)
        assert choose(logits, masked, [1], 1, 3, frozenset({1})) == 2


def test_eo_1_end_tokens_wait_for_min_tokens() -> None:
    logits = np.array([0.0, 9.0, 8.0, 1.0], np.float32)
    it = SamplingParams(temperature=0, min_tokens=3)
    assert choose(logits, it, [0, 0, 0], 1, 0, frozenset({1, 2})) == 3
    assert choose(logits, it, [0, 0, 0, 0], 1, 0, frozenset({1, 2})) == 1


def test_a_large_vocabulary_is_cut_as_if_it_had_been_sorted() -> None:
    logits = np.random.default_rng(2).normal(0, 0.3, 5000).astype(np.float32)
    for it in (SamplingParams(top_p=0.9), SamplingParams(top_p=0.05), SamplingParams(top_k=700, min_p=0.2)):
        allowed = naive(logits.tolist(), it, [1], 1, set())
        drawn = {choose(logits, it, [1], 1, seed, frozenset()) for seed in range(300)}
        assert drawn <= set(allowed)
        assert len(drawn) > 50


def test_log_probabilities_are_the_model_s_own() -> None:
    logits = np.array([0.0, 2.0, 1.0, 2.0], np.float32)
    total = math.log(sum(math.exp(each) for each in logits.tolist()))
    found = logprob(logits, 2, 3)
    assert found.logprob == pytest.approx(1 - total)
    assert [token for token, _ in found.top] == [1, 3, 2]
    assert found.top[0][1] == pytest.approx(2 - total)
    assert logprob(logits, 0, 0).top == []
