"""Answers of a known length on a model that would say something else: the last token is declared an end token.

The scheduler hears of an end exactly as it always does, in the result of the step that sampled it, and of nothing
before.  A policy that guesses lengths guesses these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from stepwell.core.execution import BackendInfo, StepResult
from stepwell.core.grammar import Grammar
from stepwell.core.instructions import Launch
from stepwell.core.placement import Ask, Place
from stepwell.core.sampling import GREEDY, SamplingParams
from stepwell.core.types import RequestId


class EndsAt:
    """A place whose requests end after as many tokens as ``lengths`` says.  They are to ignore the model's own ends."""

    def __init__(self, place: Place, lengths: Mapping[RequestId, int]) -> None:
        self._place = place
        self._lengths = lengths
        self._said: dict[RequestId, int] = {}
        self.run = place.run
        self.drop = place.drop
        self.close = place.close

    @property
    def where(self) -> str:
        return self._place.where

    @property
    def restarts(self) -> int:
        return self._place.restarts

    @property
    def device_faults(self) -> int:
        return self._place.device_faults

    @property
    def trouble(self) -> str:
        return self._place.trouble

    def open(self) -> BackendInfo:
        return self._place.open()

    def admit(
        self, request: RequestId, prompt: Sequence[int], max_tokens: int, sampling: SamplingParams = GREEDY
    ) -> None:
        self._said[request] = 0
        self._place.admit(request, prompt, max_tokens, sampling)

    def release(self, request: RequestId) -> None:
        self._said.pop(request, None)
        self._place.release(request)

    async def prepare(self, grammar: Grammar) -> None:
        await self._place.prepare(grammar)

    def begin(self, launch: Launch) -> Ask:
        return partial(self._ended, self._place.begin(launch))

    async def _ended(self, ask: Ask) -> StepResult:
        result = await ask()
        said, lengths = self._said, self._lengths
        for request, _ in result.tokens:
            if request in said:
                said[request] += 1
                if said[request] == lengths[request]:
                    result.ended.append(request)
        result.ended.sort()
        return result
