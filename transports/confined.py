"""The inside of a ``sandbox``: limits that the kernel keeps, and frames."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import msgspec


def confine(memory_mib: int) -> None:
    """From here on: this much address space, no files written, no core dumps.  Where a system lacks one, the others."""
    for limit, most in (
        (resource.RLIMIT_AS, memory_mib << 20),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (most, most))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)


@contextlib.contextmanager
def processor_time(seconds: float) -> Iterator[None]:
    """The kernel ends the process when it has computed for longer; no code in it can look away."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def frames(source: BinaryIO) -> Iterator[Any]:
    """Until the other side closes the pipe."""
    while len(head := source.read(4)) == 4:
        yield msgspec.msgpack.decode(source.read(int.from_bytes(head)))


def send(sink: BinaryIO, value: Mapping[str, str]) -> None:
    """One frame."""
    data = msgspec.msgpack.encode(value)
    sink.write(len(data).to_bytes(4) + data)
    sink.flush()
