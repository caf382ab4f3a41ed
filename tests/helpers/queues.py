"""Streams of no device at all, whose queues lag as far behind as a test wants: what was not waited for shows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stepwell.backends.device.streams import Mark, PlainStreams


class Queued:
    """A mark that passes when its queue gets there; ``at`` counts all that was done before."""

    def __init__(self) -> None:
        self.at = -1

    def passed(self) -> bool:
        return self.at >= 0

    def ns_since(self, earlier: Mark) -> int:
        assert isinstance(earlier, Queued)
        assert self.at >= earlier.at >= 0
        return 1000 * (self.at - earlier.at)


class Wait:
    """An entry of a queue that holds it up until ``mark`` has passed."""

    def __init__(self, mark: Mark) -> None:
        self.mark = mark


Entry = Queued | Wait | Callable[[], None]


class QueuedStreams(PlainStreams):
    """Implements ``Streams`` with both queues as an accelerator has them.  A test says which one moves, by ``advance``,
    and puts work into the main one by ``compute``.  ``deaf``: what a broken one would not wait for."""

    def __init__(self, deaf: str = "") -> None:
        self.main: deque[Entry] = deque()
        self.side: deque[Entry] = deque()
        self._deaf = deaf
        self._done = 0

    def compute(self, work: Callable[[], None]) -> None:
        self.main.append(work)

    def mark(self) -> Mark:
        mark = Queued()
        self.main.append(mark)
        return mark

    def follow(self, mark: Mark) -> None:
        if self._deaf != "main":
            self.main.append(Wait(mark))

    def beside(self, work: Callable[[], None], after: Mark) -> tuple[Mark, Mark]:
        begin, end = Queued(), Queued()
        if self._deaf != "side":
            self.side.append(Wait(after))
        self.side += [begin, work, end]
        return begin, end

    def advance(self, queue: deque[Entry]) -> bool:
        """Do the first entry of ``queue``; False if there is none, or it has to wait."""
        if not queue or (isinstance(queue[0], Wait) and not queue[0].mark.passed()):
            return False
        entry = queue.popleft()
        if isinstance(entry, Queued):
            entry.at = self._done
        elif not isinstance(entry, Wait):
            entry()
            self._done += 1
        return True

    def finish(self) -> None:
        """Everything is done; nothing may wait for ever."""
        while self.advance(self.main) or self.advance(self.side):
            pass
        assert not self.main
        assert not self.side


class LateStreams(PlainStreams):
    """Implements ``Streams`` for a backend that computes at once: copies are only done when somebody waits for them."""

    def __init__(self) -> None:
        self._side: deque[tuple[Callable[[], None], Queued, Queued]] = deque()
        self.late = 0
        """Copies that were waited for."""
        self._done = 0

    def mark(self) -> Mark:
        mark = Queued()
        mark.at = self._done
        return mark

    def follow(self, mark: Mark) -> None:
        while not mark.passed():
            work, begin, end = self._side.popleft()
            begin.at = self._done
            work()
            self._done += 1
            end.at = self._done
            self.late += 1

    def beside(self, work: Callable[[], None], after: Mark) -> tuple[Mark, Mark]:
        assert after.passed()
        self._side.append((work, Queued(), Queued()))
        return self._side[-1][1:]

    def host_pool(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Of rubbish, which nobody reads that was not written before."""
        return torch.full(tuple(shape), torch.nan, dtype=dtype)
