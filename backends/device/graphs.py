"""Decode steps that were recorded once and are repeated: the host says one word instead of hundreds.

A graph is bound to a number of rows and to the memory that it was recorded with, so the group is padded to the next
size there is, and everything that changes lies in persistent inputs.  All graphs share one pool of memory, since one
runs at a time: the largest decides how much that is.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch

Work = Callable[[], object]
Step = Callable[[int, int], None]
"""(rows, positions of the longest, 0: unknown): a decode step on the first rows of the persistent inputs."""

_FINE = 8
"""Sizes grow by an eighth at most, and by so many at least."""
WITHIN_S = 60.0
"""Recording takes no longer at the start; for what is missing then, the next larger graph stands in."""


class Recorder(Protocol):
    """Makes work repeatable."""

    @property
    def taken(self) -> list[int]:
        """Bytes of the device that each recording was seen to take."""
        ...

    def record(self, work: Work) -> Work:
        """Do ``work``, which reads and writes the same memory every time, and return what does it again."""
        ...


class Direct:
    """Nothing is recorded: the work itself is done again."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def record(self, work: Work) -> Work:
        work()
        return work


class Captured:
    """CUDA graphs, in one pool."""

    def __init__(self, device: torch.device) -> None:
        self.taken: list[int] = []
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Work) -> Work:
        """Raises torch's errors if the device has no memory for it."""
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            work()  # kernels are compiled and libraries make their work space by doing, which no graph may hold
        torch.cuda.current_stream(self._device).wait_stream(side)
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # as the capture does, which would otherwise seem to give memory back
        before, _ = torch.cuda.mem_get_info(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        after, _ = torch.cuda.mem_get_info(self._device)
        self.taken.append(max(before - after, 0))
        return graph.replay


class Decoding(Protocol):
    """Decode steps of the group."""

    @property
    def sizes(self) -> list[int]:
        """Rows of the graphs there are, ascending; none if every step is done by hand."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory that they hold."""
        ...

    def run(self, rows: int, longest: int) -> None:
        """One step of the first ``rows``."""
        ...


class ByHand:
    """The host launches every kernel of every step."""

    nbytes = 0

    def __init__(self, step: Step) -> None:
        self.sizes: list[int] = []
        self.run = step


class Graphs:
    """One graph for each of ``sizes``, recorded now: a recording in the middle of serving would hold every stream up,
    and what they take is known before anybody is served.  The inputs must be nobody's meanwhile."""

    def __init__(self, step: Step, sizes: Sequence[int], recorder: Recorder, within_s: float = WITHIN_S) -> None:
        self._step, self._recorder = step, recorder
        self._recorded: dict[int, Work] = {}
        until = time.monotonic() + within_s
        # The largest first, as it decides the size of the pool and can stand in for all; then those that gain most.
        for size in (sizes[-1], *sizes[:-1]):
            if self._recorded and time.monotonic() > until:
                break
            self._recorded[size] = recorder.record(partial(step, size, 0))
        self.sizes = sorted(self._recorded)

    @property
    def nbytes(self) -> int:
        return sum(self._recorder.taken)

    def run(self, rows: int, longest: int) -> None:
        """By the smallest graph that is large enough; by hand if none is."""
        place = bisect_left(self.sizes, rows)
        if place < len(self.sizes):
            self._recorded[self.sizes[place]]()
        else:
            self._step(rows, longest)


def graph_sizes(running_limit: int) -> list[int]:
    """1, 2, 4, 8, then up to the limit in steps of 8, or of an eighth (as a power of two) where that is more."""
    sizes = [size for size in (1, 2, 4) if size < running_limit]
    size = _FINE
    while size < running_limit:
        sizes.append(size)
        size += max(_FINE, 1 << (size.bit_length() - 4))
    return [*sizes, running_limit]
