"""How much fits in a step of bounded time, by a cost model's estimate."""

from __future__ import annotations

from collections.abc import Callable

from stepwell.core.protocols import BatchShape, CostModel


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
        return estimate.step_ns(BatchShape(tokens, decoding, kv_tokens, 0, prompts)) <= bound_ns

    return most_within(least, max(least, most), fits)
