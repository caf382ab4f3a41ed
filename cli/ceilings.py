"""What a machine can do at most with one thread, to read an engine's figures by: memory read, and products."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

READ_BYTES = 256 << 20
"""More than any cache holds."""
ROWS, INNER, COLUMNS = 64, 576, 1536
"""A product of a small model: 64 requests, one of its matrices."""


def ceilings() -> dict[str, object]:
    """The best of a few tries each, in GB and GFLOP a second; empty without torch."""
    try:
        import torch  # lazy: an extra, and takes seconds
    except ModuleNotFoundError:
        return {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        numbers = torch.ones(READ_BYTES // 4)
        rows, matrix = torch.ones(ROWS, INNER), torch.ones(COLUMNS, INNER)
        half, packed = rows.bfloat16(), matrix.bfloat16()
        operations = 2 * ROWS * INNER * COLUMNS
        return {
            "read_gb_per_s": round(READ_BYTES / 1e9 / _best(numbers.sum, 5), 1),
            "float32_gflop_per_s": round(operations / 1e9 / _best(lambda: rows @ matrix.T, 50), 1),
            "bfloat16_gflop_per_s": round(operations / 1e9 / _best(lambda: half @ packed.T, 50), 1),
        }
    finally:
        torch.set_num_threads(threads)


def _best(work: Callable[[], object], tries: int) -> float:
    """Seconds; the first try is not counted."""
    work()
    times = []
    for _ in range(tries):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return min(times)
