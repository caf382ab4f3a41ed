"""A child process that does what a stranger may have written, within limits that the kernel keeps.

It reads frames (four bytes of length, then msgpack) and answers each with one.  It may die of any of them: whoever
asked is told why, and starts another.  ``confined`` has the child's own side.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec

_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import main; main()"


class Died(Exception):
    """The process ended without an answer; ``why`` is empty if nothing says that what it was asked was at fault."""

    def __init__(self, why: str = "") -> None:
        super().__init__(why)
        self.why = why


class Sandbox:
    """One child, running ``main`` of ``module``.  Whoever gets ``Died`` throws it away."""

    def __init__(self, module: str, order: Mapping[str, Any], *, seconds: float, wait_s: float) -> None:
        """``seconds`` of processor time end it, as far as it keeps to ``confined``; after ``wait_s`` of anybody's time
        it is given up.  Its answer to ``order``, the first frame, is in ``begun``."""
        self._seconds = seconds
        self._wait_s = wait_s
        self._child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(path=sys.path, module=module)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._in, self._out = self._child.stdin.fileno(), self._child.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self.begun: dict[str, str] = self.ask(order)

    @property
    def alive(self) -> bool:
        """Whether it has not ended while nobody asked it anything."""
        return self._child.poll() is None

    def ask(self, value: Mapping[str, Any]) -> dict[str, str]:
        """Send a frame and wait for the one that answers it."""
        until = time.monotonic() + self._wait_s
        data = msgspec.msgpack.encode(value)
        try:
            self._write(len(data).to_bytes(4) + data, until)
            size = int.from_bytes(self._read(4, until))
            return msgspec.msgpack.decode(self._read(size, until), type=dict[str, str])
        except (OSError, Died, msgspec.DecodeError) as error:
            raise Died(self._why(error)) from None

    def _write(self, data: bytes, until: float) -> None:
        rest = memoryview(data)
        while rest:
            self._ready(self._in, select.POLLOUT, until)
            rest = rest[os.write(self._in, rest) :]

    def _read(self, size: int, until: float) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            self._ready(self._out, select.POLLIN, until)
            part = os.read(self._out, size - len(parts))
            if not part:
                raise Died
            parts += part
        return bytes(parts)

    def _ready(self, file: int, event: int, until: float) -> None:
        poll = select.poll()
        poll.register(file, event)
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            raise Died(f"takes more than {self._wait_s:g} s")

    def _why(self, error: Exception) -> str:
        if isinstance(error, Died) and error.why:
            self.end()
            return error.why
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(1)
        self.end()
        ended_by = -(self._child.returncode or 0)
        return f"takes more than {self._seconds:g} s of processor time" if ended_by == signal.SIGPROF else ""

    def end(self) -> None:
        """Now.  Harmless if it has ended."""
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
