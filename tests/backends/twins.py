"""Two backends that get the same launches, step by step, and must say the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stepwell.backends.torch_backend import TorchBackend
from stepwell.core.grammar import Grammar
from stepwell.core.instructions import Launch
from stepwell.core.protocols import StepResult
from stepwell.core.sampling import GREEDY, SamplingParams, TokenLogprob

CLOSE = 2e-3
"""Log-probabilities of float32 may differ by so much where sums are taken in another order."""


class Twins:
    """In a backend's place: ``one`` answers, and ``other`` is held to it at every step."""

    def __init__(self, one: TorchBackend, other: TorchBackend) -> None:
        self.one, self.other = one, other
        self.info = one.info
        self.steps = self.mixed = 0

    def admit(
        self,
        request: int,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
        output: Sequence[int] = (),
    ) -> None:
        """``sampling`` has a seed, or both would draw their own."""
        for each in (self.one, self.other):
            each.admit(request, prompt, max_tokens, sampling, output)

    def prepare(self, grammar: Grammar) -> None:
        self.one.prepare(grammar)
        self.other.prepare(grammar)

    def release(self, request: int) -> None:
        self.one.release(request)
        self.other.release(request)

    def close(self) -> None:
        self.one.close()
        self.other.close()

    def execute(self, batch: Launch) -> StepResult:
        said, again = self.one.execute(batch), self.other.execute(batch)
        self.steps += 1
        self.mixed += bool(batch.decode and batch.slices)
        assert again.failed == said.failed, (batch, again.failed, said.failed)
        assert again.tokens == said.tokens, batch
        assert (again.ended, again.spoiled, again.blamed) == (said.ended, said.spoiled, said.blamed), batch
        assert again.logprobs.keys() == said.logprobs.keys(), batch
        for request, logprob in said.logprobs.items():
            _near(again.logprobs[request], logprob)
        assert [each[:2] for each in again.prompt_logprobs] == [each[:2] for each in said.prompt_logprobs], batch
        for (_, _, rows), (_, _, expected) in zip(again.prompt_logprobs, said.prompt_logprobs, strict=True):
            for row, own in zip(rows, expected, strict=True):
                _near(row, own)
        return said


def _near(found: TokenLogprob, expected: TokenLogprob) -> None:
    assert found.logprob == pytest.approx(expected.logprob, abs=CLOSE)
    assert [value for _, value in found.top] == pytest.approx([value for _, value in expected.top], abs=CLOSE)
