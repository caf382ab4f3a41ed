"""The worker process: a backend behind a socket, so that its faults and its hold on the interpreter are its own.

It is started by ``core.placement_process`` and speaks in frames: four bytes of length, then msgpack.  First comes the
order (which backend), and an ``Opened`` or ``Refused`` goes back; then for every ``StepBatch`` a ``StepResult``, or a
``Broken``.  When the socket ends, so does the process.
"""

from __future__ import annotations

import signal
import socket
from typing import TypeVar

from msgspec import Struct
from msgspec.msgpack import Decoder, encode

from stepwell.core.build import build_backend
from stepwell.core.config import Config
from stepwell.core.errors import StepwellError, UserError
from stepwell.core.execution import BackendInfo, StepResult
from stepwell.core.placement import StepBatch, carry_out

MOST_BYTES = 1 << 30
"""A longer frame is a mistake."""


class Opened(Struct, tag="opened"):
    """The backend is there."""

    info: BackendInfo


class Refused(Struct, tag="refused"):
    """It cannot be made; ``field`` is the setting at fault, empty if it is no setting's."""

    message: str
    field: str = ""


class Broken(Struct, tag="broken"):
    """It raised where it should have answered; nobody knows what is on the device."""

    message: str


class Done(Struct, tag="done"):
    """A step's result."""

    result: StepResult


Answer = Opened | Refused | Broken | Done

ORDER: Decoder[Config] = Decoder(Config)
BATCH: Decoder[StepBatch] = Decoder(StepBatch)
ANSWER: Decoder[Answer] = Decoder(Answer)

T = TypeVar("T")


def framed(value: object) -> bytes:
    """One frame."""
    data = encode(value)
    return len(data).to_bytes(4) + data


def receive(channel: socket.socket, decoder: Decoder[T]) -> T:
    """The next frame; raises ``EOFError`` if the other side is gone."""
    size = int.from_bytes(_exactly(channel, 4))
    if size > MOST_BYTES:
        raise EOFError(f"a frame of {size} bytes")
    return decoder.decode(_exactly(channel, size))


def _exactly(channel: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        count = channel.recv_into(rest)
        if not count:
            raise EOFError("the other side is gone")
        rest = rest[count:]
    return data


def main(descriptor: int) -> None:
    """Serve the socket until it ends.

    Signals are for the server, which drains first: a supervisor may send them to every process of a service.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as channel:
        try:
            _serve(channel)
        except (EOFError, OSError):
            return  # the server is gone, and nobody is left to tell


def _serve(channel: socket.socket) -> None:
    try:
        backend = build_backend(receive(channel, ORDER))
    except UserError as error:
        channel.sendall(framed(Refused(error.message, error.field)))
        return
    except StepwellError as error:
        channel.sendall(framed(Refused(str(error))))
        return
    except Exception as error:
        channel.sendall(framed(Refused(f"{type(error).__name__}: {error}")))
        raise
    try:
        channel.sendall(framed(Opened(backend.info)))
        while True:
            batch = receive(channel, BATCH)
            try:
                answer: Answer = Done(carry_out(backend, batch))
            except Exception as error:
                answer = Broken(f"{type(error).__name__}: {error}")
            channel.sendall(framed(answer))
    finally:
        backend.close()
