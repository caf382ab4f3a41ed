"""A process that carries out tasks: each comes as a frame on stdin, its outcome goes back as a frame on stdout.

A frame is its length (eight bytes, the most significant first) and so many bytes.  The end of stdin ends the process.
It is started with ``python -c`` and the path of modules of whoever starts it, so it imports what they import, and
never their program.
"""

from __future__ import annotations

import json
import os
import sys
from typing import IO

LENGTH = 8

START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from stepwell.sim.compare.worker import main; main()"


def command() -> list[str]:
    """What starts a worker."""
    return [sys.executable, "-c", START, json.dumps([os.path.abspath(each) for each in sys.path])]


def write_frame(to: IO[bytes], data: bytes) -> None:
    to.write(len(data).to_bytes(LENGTH, "big") + data)
    to.flush()


def read_frame(source: IO[bytes]) -> bytes | None:
    """None where the other side has closed, be it in the middle of a frame."""
    head = source.read(LENGTH)
    if len(head) < LENGTH:
        return None
    size = int.from_bytes(head, "big")
    data = source.read(size)
    return data if len(data) == size else None


def main() -> None:
    """Serve until stdin ends.  What a plugin prints goes to stderr, as stdout speaks in frames."""
    from stepwell.sim.compare.tasks import perform  # lazy: its reader needs the frames only

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (data := read_frame(sys.stdin.buffer)) is not None:
        write_frame(answers, perform(data))
