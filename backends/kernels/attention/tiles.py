"""What the kernels of decode and of prefill share: where positions lie, and the running softmax.

Nothing but parts of kernels: to be imported only where Triton is to be used.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def pages_of(
    table: tl.tensor, start: tl.tensor, known: tl.tensor, page_size: tl.tensor, BLOCK: tl.constexpr, WHOLE: tl.constexpr
) -> tl.tensor:
    """In which pages the positions ``start`` … ``start + BLOCK - 1`` of a request lie.

    ``WHOLE``: pages are multiples of a block, so that one number of the table says it.  Otherwise every position looks
    its page up, [BLOCK], whatever the page size; those from ``known`` on do not.
    """
    if WHOLE:
        return tl.load(table + start // page_size, mask=start < known, other=0)
    else:
        position = start + tl.arange(0, BLOCK)
        return tl.load(table + position // page_size, mask=position < known, other=0)


@triton.jit  # type: ignore[untyped-decorator]
def places(
    page: tl.tensor,
    start: tl.tensor,
    page_size: tl.tensor,
    page_stride: tl.tensor,
    stride: tl.tensor,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
) -> tl.tensor:
    """Where they lie in keys and values: [BLOCK] int64.  ``page`` is what ``pages_of`` said."""
    if WHOLE:
        return page.to(tl.int64) * page_stride + (start % page_size + tl.arange(0, BLOCK)) * stride
    else:
        return page.to(tl.int64) * page_stride + (start + tl.arange(0, BLOCK)) % page_size * stride


@triton.jit  # type: ignore[untyped-decorator]
def load_tile(
    base: tl.tensor, place: tl.tensor, inside: tl.tensor, DIM: tl.constexpr, WIDTH: tl.constexpr
) -> tl.tensor:
    """One head's keys or values at some places: [BLOCK, WIDTH].  What is not ``inside`` is zero and not read: it may
    belong to somebody else, or be no number."""
    dims = tl.arange(0, WIDTH)
    mask = inside[:, None]
    if WIDTH != DIM:
        mask = mask & (dims < DIM)[None, :]
    return tl.load(base + place[:, None] + dims[None, :], mask=mask, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def absorb(scores: tl.tensor, value: tl.tensor, best: tl.tensor, total: tl.tensor, mixed: tl.tensor) -> tl.tensor:
    """One step of the softmax that runs (Milakov and Gimelshein 2018), to the base 2: takes ``scores`` [height, BLOCK]
    and ``value`` [BLOCK, WIDTH] into the highest score, the sum of weights and the weighted sum of values so far.

    What is masked scores -inf; a row that has seen nothing yet keeps -inf, 0 and zeros.
    """
    highest = tl.maximum(best, tl.max(scores, 1))
    level = tl.where(highest == float("-inf"), 0.0, highest)
    weights = tl.exp2(scores - level[:, None])
    fade = tl.exp2(best - level)
    total = total * fade + tl.sum(weights, 1)
    mixed = tl.dot(weights.to(value.dtype), value, mixed * fade[:, None], input_precision="tf32x3")
    return highest, total, mixed
