"""Two queues of work on one device: the main one computes, the side one copies between device and host.

An accelerator executes each in order, and both at once.  What must not overtake is said by marks: a mark stands in a
queue behind what was queued so far, and whatever is to ``follow`` it, in either queue, begins after that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from stepwell.core.types import NS_PER_MS


class Mark(Protocol):
    """A place in a queue."""

    def passed(self) -> bool:
        """Whether all before it is done."""
        ...

    def ns_since(self, earlier: Mark) -> int:
        """From an ``earlier`` mark of the same queue to this one, both passed."""
        ...


class Streams(Protocol):
    """The queues.  Whoever calls these is in the main one."""

    def mark(self) -> Mark:
        """Behind all that is in the main queue."""
        ...

    def follow(self, mark: Mark) -> None:
        """What comes into the main queue from here on waits for ``mark``."""
        ...

    def beside(self, work: Callable[[], None], after: Mark) -> tuple[Mark, Mark]:
        """Put ``work`` into the side queue, behind ``after``.  Returns the marks before it and behind it."""
        ...

    def index(self, pages: Sequence[int]) -> Tensor:
        """Page numbers [n] int64 on the device, for the queue that asks."""
        ...

    def host_pool(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeros in host memory that the side queue copies to and from."""
        ...


class _Moment:
    """A mark where everything is done as soon as it is said."""

    def __init__(self) -> None:
        self.ns = time.perf_counter_ns()

    def passed(self) -> bool:
        return True

    def ns_since(self, earlier: Mark) -> int:
        assert isinstance(earlier, _Moment)
        return self.ns - earlier.ns


class PlainStreams:
    """No queues at all, for the processor: everything is done when it is asked for."""

    def mark(self) -> Mark:
        return _Moment()

    def follow(self, mark: Mark) -> None:
        """It has passed."""

    def beside(self, work: Callable[[], None], after: Mark) -> tuple[Mark, Mark]:
        begin = _Moment()
        work()
        return begin, _Moment()

    def index(self, pages: Sequence[int]) -> Tensor:
        return torch.tensor(pages, dtype=torch.int64)

    def host_pool(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(*shape, dtype=dtype)


class _CudaMark:
    """An event, recorded in the stream that is current."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record()

    def passed(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def ns_since(self, earlier: Mark) -> int:
        assert isinstance(earlier, _CudaMark)
        elapsed_ms: float = earlier.event.elapsed_time(self.event)
        return round(elapsed_ms * NS_PER_MS)


class CudaStreams:
    """The current stream of a CUDA device, whichever that is at the time, and a stream beside it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def mark(self) -> Mark:
        return _CudaMark()

    def follow(self, mark: Mark) -> None:
        assert isinstance(mark, _CudaMark)
        torch.cuda.current_stream(self._device).wait_event(mark.event)

    def beside(self, work: Callable[[], None], after: Mark) -> tuple[Mark, Mark]:
        assert isinstance(after, _CudaMark)
        self._side.wait_event(after.event)
        with torch.cuda.stream(self._side):
            begin = _CudaMark()
            work()
            return begin, _CudaMark()

    def index(self, pages: Sequence[int]) -> Tensor:
        # From pinned memory, since a copy from any other waits until the whole queue before it is done.
        return torch.tensor(pages, dtype=torch.int64, pin_memory=True).to(self._device, non_blocking=True)

    def host_pool(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Page-locked, as otherwise a copy neither runs beside anything nor at the link's full speed.

        Raises ``MemoryError`` if the system does not lock as much.
        """
        pool = torch.zeros(*shape, dtype=dtype)
        if pool.numel():
            # Registered, not allocated as pinned: torch's allocator of pinned memory rounds up to a power of two.
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            status = int(runtime.cudaHostRegister(pool.data_ptr(), pool.numel() * pool.itemsize, 0))
            if status:
                raise MemoryError(f"cudaHostRegister: status {status} for {pool.numel() * pool.itemsize} bytes")
        return pool


def streams_of(device: torch.device) -> Streams:
    """Those that ``device`` has."""
    return CudaStreams(device) if device.type == "cuda" else PlainStreams()
