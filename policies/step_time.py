"""How much fits in a step of bounded time, by a cost model's estimate."""

from __future__ import annotations

from collections.abc import Callable

from stepwell.core.protocols import BatchShape, CostModel, PolicyEvent
from stepwell.core.types import FOREVER


class Paces:
    """The objectives for the time per token of those who live."""

    def __init__(self) -> None:
        self._live: dict[int, int] = {}

    def observe(self, event: PolicyEvent) -> None:
        """Take notice of an event; a policy passes every one on."""
        pace_ns = event.request.tpot_ns or FOREVER
        if event.kind == "arrived":
            self._live[pace_ns] = self._live.get(pace_ns, 0) + 1
        elif event.kind == "finished":
            self._live[pace_ns] -= 1
            if not self._live[pace_ns]:
                del self._live[pace_ns]

    def least_ns(self, otherwise_ns: int) -> int:
        """The strictest of them, ``otherwise_ns`` at most."""
        return min([otherwise_ns, *self._live])


def most_within(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number from ``low`` to ``high`` that ``fits``, where all below one that does do; ``low`` at least."""
    middle = high  # mostly all of it does
    while low < high:
        if fits(middle):
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


def prompt_tokens_within(
    estimate: CostModel, bound_ns: int, decoding: int, kv_tokens: int, prompts: int, least: int, most: int
) -> int:
    """The most prompt tokens (of ``prompts`` requests) with which a step that also lets ``decoding`` requests of
    ``kv_tokens`` go on is estimated to take ``bound_ns`` at most; ``least`` at any rate."""

    def fits(tokens: int) -> bool:
        pairs = tokens * (tokens + 1) // 2  # as of one prompt's first chunk
        return estimate.step_ns(BatchShape(tokens, decoding, kv_tokens, 0, prompts, 0, pairs)) <= bound_ns

    return most_within(least, max(least, most), fits)
