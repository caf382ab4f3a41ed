"""Sampling of all rows on a device against ``choose``, a row at a time on the processor: the same tokens, always."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `model`")
pytest.importorskip("triton", reason="needs the extra `cuda`")
pytest.importorskip("llguidance", reason="needs the extra `model`")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stepwell.backends.kernels.sampling import reference
from stepwell.backends.kernels.sampling import triton as fused
from stepwell.backends.kernels.sampling.columns import EDITS, WORDS, Sides, wants_side, words_of
from stepwell.backends.kernels.sampling.triton import Cut
from stepwell.backends.sampler import choose
from stepwell.core.errors import CapacityError
from stepwell.core.sampling import SamplingParams
from stepwell.tests.helpers.kernels import DEVICE, Guarded

ENDS = frozenset([0, 7])
TINY = Cut(chunk=64, block=32, tally_block=64, row_block=32, warps=1, row_warps=1)
"""So that a toy vocabulary is cut into several chunks of several blocks."""


class Case:
    """A batch: what each row wants, what it said so far, and its scores."""

    def __init__(self, vocabulary: int, sides: int = 8) -> None:
        self.vocabulary = vocabulary
        self.sides = Sides(sides, vocabulary, DEVICE)
        self.rows: list[tuple[SamplingParams, list[int], int, int]] = []
        self.words: list[list[int]] = []
        self.logits: list[Any] = []

    def add(self, logits: Any, it: SamplingParams, tokens: list[int], prompt: int = 1, seed: int = 0) -> None:
        place = -1
        if wants_side(it):
            place = self.sides.take()
            self.sides.count(place, tokens, prompt)
            self.sides.edit(place, it, ENDS)
        self.rows.append((it, tokens, prompt, seed))
        self.words.append(words_of(it, prompt, seed, place))
        self.logits.append(np.asarray(logits, np.float32))

    def expected(self, dtype: torch.dtype = torch.float32) -> list[int]:
        scores = self.scores(dtype).float().cpu().numpy()
        return [choose(line, *row, ENDS) for line, row in zip(scores, self.rows, strict=True)]

    def scores(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.from_numpy(np.stack(self.logits)).to(DEVICE, dtype)

    def inputs(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
        lengths = [len(tokens) for _, tokens, _, _ in self.rows]
        words = torch.tensor(self.words, dtype=torch.int32, device=DEVICE).T.contiguous()
        return self.scores(dtype), words, torch.tensor(lengths, dtype=torch.int32, device=DEVICE)

    def check(self, cut: Cut = TINY) -> None:
        """Every implementation draws what ``choose`` draws, and counts it."""
        expected = self.expected()
        before = self.sides.counts.clone()
        for sample in (reference.sample, lambda *of, **more: fused.sample(*of, cut=cut, **more)):
            self.sides.counts.copy_(before)
            out, finite = Guarded(len(self.rows), dtype=torch.int64), Guarded(len(self.rows), dtype=torch.bool)
            sample(*self.inputs(), sides=self.sides, out=out.tensor, finite=finite.tensor)
            out.check()
            finite.check()
            assert (out.tensor.tolist(), finite.tensor.all().item()) == (expected, True)
            grown = (self.sides.counts - before).nonzero().tolist()
            assert sorted(grown) == sorted(
                [words[12], token] for words, token in zip(self.words, expected, strict=True) if words[12] >= 0
            )


def params(vocabulary: int) -> st.SearchStrategy[SamplingParams]:
    token = st.integers(0, vocabulary - 1)
    return st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 1e-5, 0.1, 0.7, 1.0, 2.0, 1e300]),
        top_k=st.sampled_from([0, 0, 1, 3, vocabulary - 1, vocabulary, 1000]),
        top_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.01, 0.0]),
        min_p=st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0]),
        presence_penalty=st.sampled_from([0.0, 0.0, 1.2, -2.0]),
        frequency_penalty=st.sampled_from([0.0, 0.0, 0.5]),
        repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
        logit_bias=st.dictionaries(token, st.sampled_from([-100.0, 100.0, 0.3]), max_size=2),
        min_tokens=st.sampled_from([0, 0, 5]),
    )


@st.composite
def cases(draw: Any) -> Case:
    vocabulary = draw(st.sampled_from([1, 2, 31, 33, 64, 100]))
    case = Case(vocabulary)
    for _ in range(draw(st.integers(1, 3))):
        rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
        kind = draw(st.sampled_from(["normal", "normal", "coarse", "flat", "holes"]))
        logits = rng.normal(0, 3, vocabulary).astype(np.float32)
        if kind == "coarse":  # many ties, and both zeros
            logits = np.round(logits / 3) * np.float32(1.5)
        elif kind == "flat":
            logits[:] = 0
        elif kind == "holes":
            logits[rng.random(vocabulary) < 0.5] = -np.inf
            logits[rng.integers(vocabulary)] = 1
        tokens = draw(st.lists(st.integers(0, vocabulary - 1), min_size=2, max_size=9))
        case.add(logits, draw(params(vocabulary)), tokens, 1, draw(st.integers(-(1 << 63), (1 << 64) - 1)))
    return case


@settings(deadline=None, max_examples=10)
@given(cases())
def test_every_implementation_draws_the_token_that_choose_draws(case: Case) -> None:
    case.check()


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(cases(), st.sampled_from([TINY, Cut(16, 16, 16, 64, 1, 1), Cut(128, 64, 32, 16, 1, 1)]))
def test_every_implementation_draws_it_at_length(case: Case, cut: Cut) -> None:
    case.check(cut)


def each_way(case: Case, cut: Cut = TINY) -> list[tuple[list[int], list[bool]]]:
    made = []
    for sample in (reference.sample, lambda *of, **more: fused.sample(*of, cut=cut, **more)):
        token, finite = sample(*case.inputs(), sides=case.sides)
        made.append((token.tolist(), finite.tolist()))
    return made


def test_scores_that_are_no_numbers_are_told_and_draw_token_0() -> None:
    """And harm no other row.  Minus infinity is a score like others, as long as one is finite."""
    nan, inf = float("nan"), float("inf")
    case = Case(40)
    for wrong in ([nan], [inf], [-inf], None):
        for it in (SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(top_k=2, top_p=0.9)):
            logits = np.arange(40, dtype=np.float32)
            if wrong == [-inf]:
                logits[:] = -inf
            elif wrong:
                logits[33] = wrong[0]
            else:
                logits[1:] = -inf
            case.add(logits, it, [3])
    for tokens, finite in each_way(case):
        assert tokens == [0] * 12
        assert finite == [False] * 9 + [True] * 3


def test_no_row_feels_another_or_its_place() -> None:
    rng = np.random.default_rng(4)
    wishes = [SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(top_k=7), SamplingParams(top_p=0.8)]
    rows = [(rng.normal(0, 2, 90), it, list(range(2 + place)), place) for place, it in enumerate(wishes)]
    alone = []
    for logits, it, tokens, seed in rows:
        case = Case(90)
        case.add(logits, it, tokens, 1, seed)
        alone.append(each_way(case)[1][0][0])
    together, turned = Case(90), Case(90)
    for logits, it, tokens, seed in rows:
        together.add(logits, it, tokens, 1, seed)
    for logits, it, tokens, seed in rows[::-1]:
        turned.add(logits, it, tokens, 1, seed)
    assert each_way(together)[1][0] == alone == each_way(turned, Cut(16, 16, 16, 64, 1, 1))[1][0][::-1]


def test_half_precision_scores_are_widened() -> None:
    case = Case(60)
    for seed, it in enumerate((SamplingParams(), SamplingParams(top_k=9))):
        case.add(np.random.default_rng(seed).normal(0, 2, 60), it, [1, 2], 1, seed)
    for dtype in (torch.bfloat16, torch.float16):
        expected = case.expected(dtype)
        assert fused.sample(*case.inputs(dtype), sides=case.sides, cut=TINY)[0].tolist() == expected
        assert reference.sample(*case.inputs(dtype), sides=case.sides)[0].tolist() == expected


@pytest.mark.parametrize("it", [SamplingParams(), SamplingParams(temperature=0.7, top_k=6, top_p=0.95)])
def test_draws_follow_the_distribution(it: SamplingParams) -> None:
    """Chi-square over 6,000 seeds against the exact probabilities; the 99.99th percentile of 7 degrees is 29.9."""
    draws, logits = 6000, np.array([0.0, 1.0, -1.0, 2.0, 0.5, 1.5, -2.0, 0.7], np.float32)
    weight = np.exp(logits.astype(np.float64) / it.temperature)
    if it.top_k:
        order = np.argsort(-weight)[: it.top_k]
        running = weight[order].cumsum()
        kept = order[: int(np.searchsorted(running, it.top_p * running[-1])) + 1]
        weight = np.where(np.isin(np.arange(8), kept), weight, 0.0)
    words = torch.tensor([words_of(it, 1, seed) for seed in range(draws)], dtype=torch.int32).T.contiguous()
    lengths = torch.full((draws,), 5, dtype=torch.int32)
    scores = torch.from_numpy(logits).expand(draws, -1)
    tokens, _ = reference.sample(scores, words, lengths, sides=Sides(1, 8, torch.device("cpu")))
    seen = np.bincount(tokens.numpy(), minlength=8)
    expected = weight / weight.sum() * draws
    assert not seen[expected == 0].any()
    some = expected > 0
    assert ((seen[some] - expected[some]) ** 2 / expected[some]).sum() < 29.9


def test_side_places_are_bounded_and_come_back() -> None:
    sides = Sides(2, 40, DEVICE)
    first, second = sides.take(), sides.take()
    assert {first, second} == {0, 1}
    with pytest.raises(CapacityError, match="side place"):
        sides.take()
    sides.give_back(first)
    assert sides.take() == first
    many = SamplingParams(logit_bias=dict.fromkeys(range(40), 1.0))
    sides.edit(first, many)
    big = Sides(1, 1000, DEVICE)
    with pytest.raises(CapacityError, match=f"a device takes {EDITS}"):
        big.edit(0, SamplingParams(logit_bias=dict.fromkeys(range(EDITS + 1), 1.0)))


def test_words_say_what_they_are_for() -> None:
    assert len(words_of(SamplingParams(), 1, -1)) == WORDS
    assert not wants_side(SamplingParams(top_k=3, top_p=0.4, min_p=0.1))
    for it in ({"presence_penalty": 1.0}, {"logit_bias": {1: 1.0}}, {"min_tokens": 1}, {"bad_words": ((1,),)}):
        assert wants_side(SamplingParams(**it))


def test_no_rows_draw_nothing() -> None:
    words, lengths = torch.zeros((WORDS, 0), dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
    token, finite = fused.sample(torch.zeros((0, 8)), words, lengths, sides=Sides(1, 8, torch.device("cpu")))
    assert (token.shape, finite.shape) == ((0,), (0,))
