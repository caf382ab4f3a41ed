"""What recorded decode steps take on the device alone: by its events around each time that one is repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from stepwell.backends.device.graphs import Captured, Direct, Recorder, Work
from stepwell.benchmarks.gpu.stopwatch import event


class StepClock:
    """``recorder`` is what a backend is to record its steps with."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._seconds: list[float] = []

    def recorder(self) -> Recorder:
        if self._device.type == "cuda":
            return _Timed(Captured(self._device), self._by_events)
        return _Timed(Direct(), self._by_host)

    def seconds(self) -> Sequence[float]:
        """Of every step so far; waits for the device."""
        if self._events:
            torch.cuda.synchronize(self._device)
        return [*self._seconds, *(start.elapsed_time(end) / 1e3 for start, end in self._events)]

    def _by_events(self, work: Work) -> None:
        start, end = event(), event()
        start.record()
        work()
        end.record()
        self._events.append((start, end))

    def _by_host(self, work: Work) -> None:
        start_ns = time.perf_counter_ns()
        work()
        self._seconds.append((time.perf_counter_ns() - start_ns) / 1e9)


class _Timed:
    """A recorder; whatever it recorded is timed when it is repeated."""

    def __init__(self, recorder: Recorder, timed: Callable[[Work], None]) -> None:
        self._recorder, self._timed = recorder, timed

    @property
    def taken(self) -> list[int]:
        return self._recorder.taken

    def record(self, work: Work) -> Work:
        repeated = self._recorder.record(work)
        return lambda: self._timed(repeated)
