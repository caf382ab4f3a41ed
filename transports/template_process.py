"""The near side of ``template_worker.py``: starts its processes, talks to them, and replaces those that died."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

import msgspec

from stepwell.core.errors import CapacityError, UserError


class TemplateLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a template may use for one rendering."""

    seconds: float = 1.0
    """Of processor time."""
    wait_s: float = 30.0
    """Of anybody's time: a process that has not answered by then is given up, however little it computed."""
    memory_mib: int = 1024
    most_letters: int = 8_000_000
    processes: int = 2
    """How many may render at once."""


class Died(Exception):
    """The process ended without an answer; ``why`` is empty if nothing says that the template was at fault."""

    def __init__(self, why: str = "") -> None:
        super().__init__(why)
        self.why = why


_PROGRAM = "import sys; sys.path[:] = {path!r}; from stepwell.transports.template_worker import main; main()"


class _Process:
    """One worker.  Whoever gets ``Died`` throws it away."""

    def __init__(self, template: str, limits: TemplateLimits) -> None:
        self._limits = limits
        self._child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(path=sys.path)],
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
        order = {"template": template, "seconds": limits.seconds, "memory_mib": limits.memory_mib}
        self.compiled: dict[str, str] = self.ask({**order, "most_letters": limits.most_letters})

    def ask(self, value: Mapping[str, Any]) -> dict[str, str]:
        """Send a frame and wait for the one that answers it."""
        until = time.monotonic() + self._limits.wait_s
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
            raise Died(f"takes more than {self._limits.wait_s:g} s")

    def _why(self, error: Exception) -> str:
        if isinstance(error, Died) and error.why:
            self.end()
            return error.why
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(1)
        self.end()
        ended_by = -(self._child.returncode or 0)
        return f"takes more than {self._limits.seconds:g} s of processor time" if ended_by == signal.SIGPROF else ""

    def end(self) -> None:
        """Now.  Harmless if it has ended."""
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()


class TemplatePool:
    """Processes for one template.  The first starts with the pool, which so finds out whether the template compiles."""

    def __init__(self, template: str, limits: TemplateLimits) -> None:
        self._template = template
        self._limits = limits
        self._free = threading.BoundedSemaphore(limits.processes)
        self._idle: list[_Process] = [self._start()]
        weakref.finalize(self, _end_all, self._idle)

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text; raises ``UserError`` as the template deserves, and ``CapacityError`` if all processes stay busy."""
        if not self._free.acquire(timeout=self._limits.wait_s):
            raise CapacityError("every process that renders chat templates is busy", code="templates_busy")
        try:
            told = self._ask(variables)
        finally:
            self._free.release()
        kind, error = told.get("kind"), told.get("error", "")
        if kind is None:
            return told["text"]
        if kind == "refused":
            raise UserError(f"the chat template refuses them: {error}", field="messages")
        if kind == "failed":
            raise UserError(f"the chat template cannot render them: {error}", field="messages")
        if kind == "unsafe":
            raise UserError(f"does what it may not: {error}", field="chat_template")
        most = f"{self._limits.most_letters} letters or {self._limits.memory_mib} MiB"
        raise UserError(f"makes more than {most}", field="chat_template")

    def close(self) -> None:
        _end_all(self._idle)

    def _start(self) -> _Process:
        try:
            process = _Process(self._template, self._limits)
        except Died as died:
            raise UserError(died.why or "the process that renders it did not start", field="chat_template") from None
        if "error" in process.compiled:
            process.end()
            raise UserError(f"does not compile: {process.compiled['error']}", field="chat_template")
        return process

    def _ask(self, variables: Mapping[str, Any]) -> dict[str, str]:
        """A process that died while nobody looked is replaced once."""
        for _ in range(2):
            try:
                process = self._idle.pop()
            except IndexError:
                process = self._start()
            try:
                told = process.ask(variables)
            except Died as died:
                if died.why:
                    raise UserError(died.why, field="chat_template") from None
                continue
            except BaseException:
                process.end()
                raise
            self._idle.append(process)
            return told
        raise UserError("ends the process that renders it", field="chat_template")


def _end_all(processes: list[_Process]) -> None:
    while processes:
        processes.pop().end()
