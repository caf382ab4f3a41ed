"""How attention is cut on a GPU: stored numbers, chosen by a pure function of shapes, never searched for at start.

What they rest on.  Decode reads every key and value once and computes little with it, so it wants many bytes on their
way: about 3.4 MB on an H200 (4.8 TB/s × 0.7 µs), 26 KiB for each of its 132 multiprocessors.  A block of keys and one
of values are 32 KiB together, two of each are fetched ahead (70 KiB of shared memory), and three programs share a
multiprocessor.  Prefill computes much with each byte, so it wants tall tiles; blocks are as long as registers allow
without spills.  Every choice fits into the shared memory and the registers of sm_80; none was measured yet.
"""

from __future__ import annotations

import msgspec

MAX_DIM = 256
BAND = 16
"""Query heads of one key-value head that are taken together: the least height of a product on the tensor cores."""


class DecodeTuning(msgspec.Struct, frozen=True):
    """``block``: positions taken together; ``programs``: per multiprocessor."""

    block: int
    warps: int
    stages: int
    programs: int = 3


class PrefillTuning(msgspec.Struct, frozen=True):
    """``height``: rows of a tile, a row being one query head of one position; ``block``: positions taken together."""

    height: int
    block: int
    warps: int
    stages: int


_DECODE = {
    2: {64: DecodeTuning(128, 4, 3), 128: DecodeTuning(64, 4, 3), 256: DecodeTuning(32, 4, 3)},
    4: {64: DecodeTuning(32, 4, 2), 128: DecodeTuning(32, 4, 2), 256: DecodeTuning(16, 4, 2)},
}
"""By bytes of a number and by the width of a head."""

_PREFILL: dict[int, dict[int, tuple[PrefillTuning, ...]]] = {
    2: {
        64: (PrefillTuning(16, 128, 4, 3), PrefillTuning(128, 64, 8, 3)),
        128: (PrefillTuning(16, 64, 4, 3), PrefillTuning(128, 32, 8, 3)),
        256: (PrefillTuning(16, 32, 4, 3), PrefillTuning(64, 32, 8, 2)),
    },
    4: {
        64: (PrefillTuning(16, 32, 4, 2),),
        128: (PrefillTuning(16, 32, 4, 2),),
        256: (PrefillTuning(16, 16, 4, 2),),
    },
}
"""By bytes of a number and width of a head: from low tiles, for few rows, to high ones."""


def width_of(dim: int) -> int:
    """A head's dimensions, padded to what a tile may have."""
    return 1 << max(4, (dim - 1).bit_length())


def decode_tuning(itemsize: int, dim: int) -> DecodeTuning:
    return _DECODE[itemsize][max(64, width_of(dim))]


def prefill_tunings(itemsize: int, dim: int) -> tuple[PrefillTuning, ...]:
    return _PREFILL[itemsize][max(64, width_of(dim))]


def prefill_tuning(itemsize: int, dim: int, group: int, longest_slice: int) -> PrefillTuning:
    """The lowest tile that takes the longest slice whole; otherwise the highest."""
    choices = prefill_tunings(itemsize, dim)
    return next((each for each in choices if each.height >= min(group, BAND) * longest_slice), choices[-1])


def decode_programs(tuning: DecodeTuning, processors: int, rows: int, kv_heads: int, group: int, longest: int) -> int:
    """How many programs share the work: what the device runs at once, unless there are fewer blocks than that."""
    blocks = rows * kv_heads * -(-group // BAND) * -(-longest // tuning.block)
    return max(1, min(processors * tuning.programs, blocks))
