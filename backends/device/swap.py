"""Moves pages between the device and a host pool, beside whatever the device computes.

A swap gathers its pages into a staging buffer in the side queue, copies that to the host in one piece for each run of
neighbouring host pages, and goes the same way back.  What keeps the two queues in step:

- A copy begins behind everything that was in the main queue when it was asked for: earlier steps have written the pages
  that go out, and are done with those that come in.
- Whoever is about to touch a page in the main queue says so (``settle``).  If the page is on the move, the main queue
  waits for that copy, and for no later one: a page that goes out is overwritten only after it was gathered, one that
  comes in is read only after it was scattered.
- Copies among themselves keep their order, so a host page needs no mark of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from stepwell.backends.device.streams import Mark, Streams
from stepwell.core.instructions import CopyRow, Launch
from stepwell.core.types import Page, RequestId

STAGING_BYTES = 64 << 20
"""Of the staging buffer, at most (one page, if that is more): about a millisecond of the link to the host."""


class PageKernels(Protocol):
    """How pages of all layers are copied on the device; ``kernels.pages`` says what each does."""

    def copy_pages(self, keys: Tensor, values: Tensor, sources: Tensor, targets: Tensor) -> None: ...
    def gather_pages(self, keys: Tensor, values: Tensor, pages: Tensor, *, out: Tensor) -> Tensor: ...
    def scatter_pages(self, staged: Tensor, keys: Tensor, values: Tensor, pages: Tensor) -> None: ...


class _Move(msgspec.Struct, gc=False):
    """Copies that were asked for at once: the marks around them, and how many pages they are."""

    begin: Mark
    end: Mark
    pages: int


def staging_pages(host_pages: int, page_bytes: int) -> int:
    """Pages of the staging buffer."""
    return min(host_pages, max(1, STAGING_BYTES // page_bytes))


class PageMover:
    """Between the pools ``keys`` and ``values`` ([layers, pages + 1, page size, kv heads, dim]) and ``host_pages``.

    Raises ``MemoryError`` and torch's own errors if there is no memory for the host pool or the staging buffer.
    """

    def __init__(self, keys: Tensor, values: Tensor, host_pages: int, kernels: PageKernels, streams: Streams) -> None:
        self._keys, self._values, self._kernels, self._streams = keys, values, kernels, streams
        page = (2, keys.shape[0], *keys.shape[2:])
        page_bytes = 2 * keys.numel() * keys.itemsize // keys.shape[1]
        self._host = streams.host_pool((host_pages, *page), keys.dtype)
        self._staged = torch.empty((staging_pages(host_pages, page_bytes), *page), dtype=keys.dtype, device=keys.device)
        self._moves: deque[_Move] = deque()
        """Copies that the main queue has not waited for, in their order."""
        self._first = 0
        """The number of the first of them."""
        self._by: dict[Page, int] = {}
        """Device pages on the move, and the number of the copy that moves each (the latest)."""
        self._timed: deque[_Move] = deque()
        """Copies that nobody has asked the time of."""
        self._page_ns = 0.0
        """What a page took lately; 0: not measured yet."""

    def swap_out(self, rows: Sequence[CopyRow]) -> None:
        """Copy device pages to host pages."""
        self._move(rows, self._out)

    def swap_in(self, rows: Sequence[CopyRow]) -> None:
        """Copy host pages back to device pages."""
        self._move(rows, self._in)

    def settle(self, pages: Iterable[Page]) -> None:
        """From here on, whatever comes into the main queue may read and write ``pages``."""
        while self._moves and self._moves[0].end.passed():
            self._forget(self._first + 1)
        if not self._by:
            return
        latest = max((self._by.get(page, -1) for page in pages), default=-1)
        if latest < self._first:
            return
        self._streams.follow(self._moves[latest - self._first].end)
        self._forget(latest + 1)

    def copy_ns(self, pages: int) -> int:
        """What copying ``pages`` takes in the side queue: of the copies that are done and were not asked about, if they
        were so many; otherwise at the speed of the latest that were timed (0: none yet)."""
        took_ns = copied = 0
        while self._timed and self._timed[0].end.passed():
            move = self._timed.popleft()
            took_ns += move.end.ns_since(move.begin)
            copied += move.pages
        if copied:
            self._page_ns = took_ns / copied
        if copied == pages and not self._timed:
            return took_ns
        return round(self._page_ns * pages)

    # ------------------------------------------------------------------------------------------------ the side queue

    def _move(self, rows: Sequence[CopyRow], way: Callable[[list[Page], list[Page]], None]) -> None:
        device = [page for _, pages, _ in rows for page in pages]
        host = [page for _, _, pages in rows for page in pages]
        if not device:
            return
        begin, end = self._streams.beside(partial(self._in_chunks, way, device, host), self._streams.mark())
        move = _Move(begin, end, len(device))
        self._timed.append(move)
        if end.passed():
            return
        self._by |= dict.fromkeys(device, self._first + len(self._moves))
        self._moves.append(move)

    def _in_chunks(self, way: Callable[[list[Page], list[Page]], None], device: list[Page], host: list[Page]) -> None:
        most = len(self._staged)
        for first in range(0, len(device), most):
            way(device[first : first + most], host[first : first + most])

    def _out(self, device: list[Page], host: list[Page]) -> None:
        staged = self._staged[: len(device)]
        self._kernels.gather_pages(self._keys, self._values, self._streams.index(device), out=staged)
        for first, last in _runs(host):
            self._host[host[first] : host[first] + last - first].copy_(staged[first:last], non_blocking=True)

    def _in(self, device: list[Page], host: list[Page]) -> None:
        staged = self._staged[: len(device)]
        for first, last in _runs(host):
            staged[first:last].copy_(self._host[host[first] : host[first] + last - first], non_blocking=True)
        self._kernels.scatter_pages(staged, self._keys, self._values, self._streams.index(device))

    def _forget(self, until: int) -> None:
        """Nobody has to wait any more for copies before that number."""
        while self._moves and self._first < until:
            self._moves.popleft()
            self._first += 1
        self._by = {page: number for page, number in self._by.items() if number >= self._first}


def touched(batch: Launch, table_of: Callable[[RequestId], Sequence[Page]]) -> Iterator[Page]:
    """Device pages that a step uses and the one before it did not: those of whoever begins to run, and new ones."""
    yield from batch.growth[1::2]
    for id in batch.joined:
        yield from table_of(id)
    for id, *_ in batch.slices:
        yield from table_of(id)


def _runs(pages: Sequence[Page]) -> list[tuple[int, int]]:
    """From where to where ``pages`` are neighbours, each one more than the one before it."""
    breaks = [place for place, (one, other) in enumerate(pairwise(pages), 1) if other != one + 1]
    return list(pairwise([0, *breaks, len(pages)]))
