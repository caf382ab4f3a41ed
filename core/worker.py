"""The worker process: a backend behind a socket, so that its faults and its hold on the interpreter are its own.

It is started by ``core.placement_process`` and speaks in frames: four bytes of length, then msgpack.  First comes the
order (which backend), and an ``Opened`` or ``Refused`` goes back; then for every ``StepBatch`` that is not void a
``Done``, a ``Broken``, or a ``Fallen``, and for every ``Preparation`` a ``Prepared``, whenever that is done: steps go
on beside it.  When the socket ends, so does the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from msgspec import Struct
from msgspec.msgpack import Decoder, encode

from stepwell.core.build import build_backend
from stepwell.core.config import Config
from stepwell.core.errors import DeviceLostError, StepwellError, UserError
from stepwell.core.execution import Backend, BackendInfo, StepResult
from stepwell.core.placement import Execution, Preparation, StepBatch, prepare

MOST_BYTES = 1 << 30
"""A longer frame is a mistake."""
FALLEN = 70
"""Exit status of a process whose device is lost."""


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


class Fallen(Struct, tag="fallen"):
    """The device is lost for this process, which ends; ``message`` says why."""

    message: str


class Prepared(Struct, tag="prepared"):
    """The grammar of that number is ready; or ``problem`` says why not."""

    number: int
    problem: str = ""


class Done(Struct, tag="done"):
    """A step's result."""

    result: StepResult


Answer = Opened | Refused | Broken | Fallen | Done | Prepared

ORDER: Decoder[Config] = Decoder(Config)
ORDERED: Decoder[StepBatch | Preparation] = Decoder(StepBatch | Preparation)
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
    backend = _opened(channel)
    if backend is None:
        return
    telling = threading.Lock()

    def tell(answer: Answer) -> None:
        with telling:
            channel.sendall(framed(answer))

    execution = Execution(backend)
    beside = ThreadPoolExecutor(1, "stepwell-prepare")
    try:
        tell(Opened(backend.info))
        while True:
            ordered = receive(channel, ORDERED)
            if isinstance(ordered, Preparation):
                beside.submit(_prepare, backend, ordered, tell)
                continue
            try:
                result = execution.carry_out(ordered)
            except DeviceLostError as error:
                tell(Fallen(str(error)))
                os._exit(FALLEN)  # without cleaning up, in which the library of a lost device hangs or aborts
            except Exception as error:
                tell(Broken(f"{type(error).__name__}: {error}"))
            else:
                if result is not None:
                    tell(Done(result))
    finally:
        beside.shutdown(wait=False, cancel_futures=True)
        backend.close()


def _opened(channel: socket.socket) -> Backend | None:
    """The backend that is ordered; None if it cannot be made, and the other side has been told."""
    try:
        return build_backend(receive(channel, ORDER))
    except UserError as error:
        channel.sendall(framed(Refused(error.message, error.field)))
    except StepwellError as error:
        channel.sendall(framed(Refused(str(error))))
    except Exception as error:
        channel.sendall(framed(Refused(f"{type(error).__name__}: {error}")))
        raise
    return None


def _prepare(backend: Backend, ordered: Preparation, tell: Callable[[Answer], None]) -> None:
    """In a thread beside the steps."""
    problem = ""
    try:
        prepare(backend, ordered.grammar)
    except UserError as error:
        problem = error.message
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    with contextlib.suppress(OSError):  # nobody is left to tell
        tell(Prepared(ordered.number, problem))
