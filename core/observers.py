"""Who watches an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from stepwell.core.events import Event
from stepwell.core.instructions import Instruction
from stepwell.core.types import RequestId, StepId

Observer = Callable[[int, Sequence[Event], Sequence[Instruction]], None]
"""Called after every batch of events with its time, the events, and the instructions they led to."""


class TokenObserver(Protocol):
    """Is told the token ids, which the scheduler never sees (journal level ``tokens``)."""

    def prompt(self, request: RequestId, tokens: Sequence[int]) -> None: ...
    def sampled(self, step: StepId, tokens: Sequence[tuple[RequestId, int]]) -> None:
        """Those that count: of requests that had not ended before."""
        ...
