"""How long something takes on a device: by its own events, with its cache emptied before, the median of several."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

_FLUSHED = 512 << 20
"""Bytes that are written before what is timed: more than any cache, and long enough (0.1 ms) that the host has handed
over what is timed by then."""
_REPEATS = 15
_WARM_UP = 3


class Stopwatch:
    def __init__(self, device: torch.device) -> None:
        self._card = device.type == "cuda"
        self._flushed = torch.empty(_FLUSHED if self._card else 0, dtype=torch.int8, device=device)

    def seconds(self, work: Callable[[], object], repeats: int = _REPEATS) -> float:
        """Of one ``work``; what it needs must be there after the first time, as compiling and autotuning are."""
        if not self._card:
            start_ns = time.perf_counter_ns()
            work()
            return (time.perf_counter_ns() - start_ns) / 1e9
        for _ in range(_WARM_UP):
            work()
        pairs = [(event(), event()) for _ in range(repeats)]
        for start, end in pairs:
            self._flushed.zero_()
            start.record()
            work()
            end.record()
        torch.cuda.synchronize()
        return float(median(start.elapsed_time(end) for start, end in pairs)) / 1e3


def event() -> torch.cuda.Event:
    """To be recorded: a moment of the device."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def copy_bandwidth(stopwatch: Stopwatch, device: torch.device, count: int) -> float:
    """Bytes a second that a copy within the device's memory reads and writes, both counted."""
    source = torch.empty(count, dtype=torch.int8, device=device).fill_(1)
    target = torch.empty_like(source)
    return 2 * count / stopwatch.seconds(lambda: target.copy_(source))


def matrix_rate(stopwatch: Stopwatch, device: torch.device, size: int, dtype: torch.dtype) -> float:
    """Operations a second of a square product."""
    left = torch.randn((size, size), device=device, dtype=dtype)
    right = torch.randn((size, size), device=device, dtype=dtype)
    return 2 * size**3 / stopwatch.seconds(lambda: left @ right)
