"""A server of our own in a process of its own, on a free port, which ends with whoever measures it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from stepwell.core.errors import UserError

SERVE = ("-m", "stepwell", "serve", "--port", "0", "--log-level", "error")
STOP_S = 20.0
"""For the server to end after it was asked to."""


class OwnServer(msgspec.Struct, frozen=True):
    """Where it listens (with ``/v1``), and its process."""

    url: str
    pid: int


@contextmanager
def own_server(
    arguments: Sequence[str], program: Sequence[str] = SERVE, python: str = sys.executable
) -> Iterator[OwnServer]:
    """``program``, run by ``python``, with ``arguments``; ready inside, and stopped after, even if we are told to end.

    Raises ``UserError`` if it does not start.
    """
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    process = subprocess.Popen([python, *program, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield OwnServer(_url_of(process), process.pid)
    finally:
        _stop(process)
        signal.signal(signal.SIGTERM, before)


def _url_of(process: subprocess.Popen[str]) -> str:
    """As its greeting says; then it is ready."""
    assert process.stdout is not None
    url = ""
    for line in process.stdout:
        found = re.search(r"http://\S+/v1", line)
        url = url or (found[0] if found else "")
        if line.startswith("try: "):
            return url
    raise UserError(f"the server did not start (exit status {process.wait()}); what it said is above", field="model")


def _stop(process: subprocess.Popen[str]) -> None:
    """Once politely, once not, and then by force."""
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            deadline_s = time.monotonic() + STOP_S
            while process.poll() is None and time.monotonic() < deadline_s:
                time.sleep(0.05)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
