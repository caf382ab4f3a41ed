"""A backend in a process of its own, which may die: it is started again, and told what every live request has said.

A request's state is its prompt, its output and how it is sampled; that is kept here.  The KV pages go with the process,
and the scheduler hears so (``StepFailed`` with ``device_lost``): requests are recomputed and go on where they were.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import anyio
import anyio.to_thread
import structlog
from msgspec import DecodeError
from msgspec.structs import replace

from stepwell.core.config import Config
from stepwell.core.errors import CapacityError, InvariantError, UserError
from stepwell.core.execution import BackendInfo, StepResult
from stepwell.core.grammar import Grammar
from stepwell.core.instructions import Launch
from stepwell.core.placement import Admission, Ask, Orders, Preparation, unchanging
from stepwell.core.sampling import GREEDY, SamplingParams
from stepwell.core.types import RequestId, StepId
from stepwell.core.worker import ANSWER, Answer, Broken, Done, Fallen, Opened, Prepared, Refused, framed, receive

log = structlog.get_logger("stepwell.worker")

MAX_DEATHS = 5
"""So often in a row, without one finished step, the process may die or not come up; then the engine stops."""
OPEN_S = 600.0
"""Loading a model takes no longer."""
BACKOFF_S = 0.25
"""Before the second try in a row; doubled with each further one."""
GOODBYE_S = 1.0
"""A process that is told to end may finish its step for so long."""

_PROGRAM = "import sys; sys.path[:] = {path!r}; from stepwell.core.worker import main; main({descriptor})"


class WorkerDied(Exception):
    """The process ended, and how; ``device`` says that its device failed."""

    def __init__(self, how: str, *, device: bool = False) -> None:
        super().__init__(how)
        self.device = device


class Worker(Protocol):
    """One worker, from its start to its end: a process, or what a test puts in its place."""

    @property
    def pid(self) -> int: ...
    def opened(self) -> BackendInfo:
        """Wait until it is ready.  Raises ``UserError`` if it cannot be, and ``WorkerDied``."""
        ...

    async def ready(self) -> BackendInfo:
        """As ``opened``, while the event loop goes on."""
        ...

    async def tell(self, value: object) -> None:
        """Send something.  If it has died, whoever waits for an answer finds out."""
        ...

    async def answer(self) -> Answer:
        """What it says next.  Raises ``WorkerDied``."""
        ...

    def end(self) -> None:
        """Make it.  Harmless if it has ended."""
        ...


class WorkerProcess:
    """One process, from its start to its end.  It is ready once ``opened`` has returned."""

    def __init__(self, config: Config) -> None:
        self._telling = anyio.Lock(fast_acquire=True)
        self._channel, far = socket.socketpair()
        with far:
            program = _PROGRAM.format(path=sys.path, descriptor=far.fileno())
            self._child = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=2,  # standard output belongs to the server
                pass_fds=[far.fileno()],
                start_new_session=True,  # an interrupt of the terminal is not meant for it
            )
        with contextlib.suppress(OSError):  # if it has died already, ``opened`` says how
            self._channel.sendall(framed(config))

    @property
    def pid(self) -> int:
        return self._child.pid

    def opened(self) -> BackendInfo:
        """Wait until the model is loaded.  Raises ``UserError`` if it cannot be, and ``WorkerDied``."""
        self._channel.settimeout(OPEN_S)
        try:
            answer = receive(self._channel, ANSWER)
        except (OSError, EOFError, DecodeError) as error:
            raise WorkerDied(self._end_of(error)) from None
        if isinstance(answer, Refused):
            self.end()
            if answer.field:
                raise UserError(answer.message, field=answer.field)
            raise WorkerDied(f"failed: {answer.message}")
        assert isinstance(answer, Opened), answer
        self._channel.setblocking(False)
        return answer.info

    async def ready(self) -> BackendInfo:
        """As ``opened``, while the event loop goes on."""
        return await anyio.to_thread.run_sync(self.opened, abandon_on_cancel=True)

    async def tell(self, value: object) -> None:
        """Send a frame, whole.  If it has died, whoever waits for an answer finds out."""
        async with self._telling:
            with contextlib.suppress(OSError):
                await asyncio.get_running_loop().sock_sendall(self._channel, framed(value))

    async def answer(self) -> Answer:
        """The next frame.  Raises ``WorkerDied``."""
        try:
            size = int.from_bytes(await self._exactly(4))
            answer = ANSWER.decode(await self._exactly(size))
        except (OSError, EOFError, DecodeError) as error:
            # In a thread, since a process may be slow to end.
            raise WorkerDied(await anyio.to_thread.run_sync(self._end_of, error)) from None
        if isinstance(answer, Fallen):
            await anyio.to_thread.run_sync(self.end)
            raise WorkerDied(f"lost its device: {answer.message}", device=True)
        return answer

    async def _exactly(self, size: int) -> bytearray:
        loop, data = asyncio.get_running_loop(), bytearray(size)
        rest = memoryview(data)
        while rest:
            count = await loop.sock_recv_into(self._channel, rest)
            if not count:
                raise EOFError("it closed its socket")
            rest = rest[count:]
        return data

    def _end_of(self, error: Exception) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(GOODBYE_S)
        status = self._child.returncode
        self.end()
        if status is None:
            return f"does not answer ({error})"
        return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"

    def end(self) -> None:
        """Ask it to, then make it.  Harmless if it has ended."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()
        try:
            self._child.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class Process:
    """See the module.  Made with the process started (by ``start``); ``open`` waits for its model."""

    def __init__(self, config: Config, start: Callable[[Config], Worker] = WorkerProcess) -> None:
        self.trouble = ""
        self.restarts = 0
        self.device_faults = 0
        """How many of them were started because the device had failed the one before."""
        self._config = config
        self._start = start
        self._worker = start(config)
        self._info: BackendInfo | None = None
        self._live: dict[RequestId, Admission] = {}
        self._orders = Orders()
        self._deaths = 0
        self._steps: deque[tuple[StepId, asyncio.Future[StepResult]]] = deque()
        """Those that were begun and are not over."""
        self._outbox: deque[Launch] = deque()
        """Of these, the ones that are not sent."""
        self._outgoing = anyio.Event()
        self._loss: StepResult | None = None
        """What tells that the device is lost, until it is asked."""
        self._void = False
        """The device is lost and the scheduler may not know it yet: what it launches is for nobody."""
        self._tell_loss: Callable[[Ask], None] = lambda ask: None
        self._preparing: dict[int, asyncio.Future[str]] = {}
        """Grammars that are being made ready there, by number; what comes of each is a problem, or nothing."""
        self._prepared = 0

    def open(self) -> BackendInfo:
        """Raises ``UserError`` if the model cannot be loaded."""
        if self._info is None:
            try:
                self._info = self._worker.opened()
                self._config = _with_pages(self._config, self._info.pages)
            except WorkerDied as died:
                raise UserError(f"the process that loads the model {died}", field="model.path") from None
        return self._info

    @property
    def where(self) -> str:
        return f"in worker process {self.pid}"

    @property
    def pid(self) -> int:
        """Of the process that executes now."""
        return self._worker.pid

    def admit(
        self, request: RequestId, prompt: Sequence[int], max_tokens: int, sampling: SamplingParams = GREEDY
    ) -> None:
        """The seed is drawn here, so that another process would draw the same tokens."""
        self.open().check_prompt(prompt)
        if sampling.seed is None:
            sampling = replace(sampling, seed=secrets.randbits(63))
        each = self._live[request] = Admission(request, unchanging(prompt), max_tokens, sampling)
        self._orders.admit(each)

    def release(self, request: RequestId) -> None:
        if self._live.pop(request, None) is not None:
            self._orders.release(request)

    async def prepare(self, grammar: Grammar) -> None:
        """Raises ``UserError`` if it is none, or if the process ends meanwhile: it may be what ended it; and
        ``CapacityError`` while there is no process."""
        if self.trouble:
            raise CapacityError(self.trouble, code="not_ready")
        self._prepared += 1
        number = self._prepared
        problem: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._preparing[number] = problem
        try:
            with anyio.CancelScope(shield=True):  # half a frame would be the last that is understood
                await self._worker.tell(Preparation(number, grammar))
            wrong = await problem
        finally:
            del self._preparing[number]
        if wrong:
            raise UserError(wrong, field="structured_outputs")

    def begin(self, launch: Launch) -> Ask:
        over: asyncio.Future[StepResult] = asyncio.get_running_loop().create_future()
        if not self._void:
            self._steps.append((launch.step, over))
            self._outbox.append(launch)
            self._outgoing.set()
        return partial(self._ask, over)

    async def _ask(self, over: asyncio.Future[StepResult]) -> StepResult:
        result = await over
        if result is self._loss:
            self._loss = None
        return result

    def drop(self) -> None:
        self._steps.clear()
        self._outbox.clear()
        self._orders.epoch += 1
        self._void = self._loss is not None
        if self._loss is not None:  # nobody asked: a step before it had failed
            self._mention(self._loss)

    async def run(self, lost: Callable[[Ask], None]) -> None:
        """Send and listen, and start the process again whenever it has died.

        Raises ``InvariantError`` once it died too often without executing anything.
        """
        self._tell_loss = lost
        given_up: InvariantError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send)
            try:
                await self._listen()
            except InvariantError as error:
                given_up = error
            tasks.cancel_scope.cancel()
        if given_up is not None:
            raise given_up

    async def _send(self) -> None:
        while True:
            while self.trouble or not self._outbox:
                self._outgoing = anyio.Event()
                await self._outgoing.wait()
            await self._worker.tell(self._orders.take(self._outbox.popleft()))

    async def _listen(self) -> None:
        while True:
            try:
                while True:
                    self._hear(await self._worker.answer())
            except WorkerDied as died:
                self.device_faults += died.device
                self._mourn(f"the worker process {died}")
            await self._start_again()

    def close(self) -> None:
        self._worker.end()

    def _hear(self, answer: Answer) -> None:
        if isinstance(answer, Prepared):
            self._settle(answer.number, answer.problem)
            return
        if not self._steps:
            return  # the engine is stopping
        step, over = self._steps.popleft()
        if over.done():
            return
        if isinstance(answer, Done):
            if answer.result.step != step:
                raise InvariantError(f"a result of step {answer.result.step} came, and not of step {step}")
            if not answer.result.failed:
                self._deaths = 0
            for request, token in answer.result.tokens:
                if request in self._live:
                    self._live[request].output.append(token)
            over.set_result(answer.result)
        else:
            told = answer.message if isinstance(answer, Broken) else f"the worker process said {answer!r}"
            over.set_exception(InvariantError(told))

    def _settle(self, number: int, problem: str) -> None:
        """Whoever waits for a grammar is told; they may have left."""
        waiting = self._preparing.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(problem)

    def _mourn(self, why: str) -> None:
        """Whoever waits for a step is told; if nobody does, whoever comes next."""
        log.error("a worker process is gone", pid=self.pid, why=why, running=len(self._live))
        self.trouble = f"{why}; it is being started again"
        self._deaths += 1
        for number in list(self._preparing):
            self._settle(number, "the process that makes it ready has ended; try again")
        self._void = True
        self._outbox.clear()
        waiting = [each for each in self._steps if not each[1].done()]
        self._steps.clear()
        self._loss = StepResult(waiting[0][0] if waiting else 0, failed=why, device_lost=True)
        if waiting:
            waiting[0][1].set_result(self._loss)
        else:
            self._mention(self._loss)

    def _mention(self, loss: StepResult) -> None:
        """No step is there that could say so."""
        loss.step = 0
        over: asyncio.Future[StepResult] = asyncio.get_running_loop().create_future()
        over.set_result(loss)
        self._tell_loss(partial(self._ask, over))

    async def _start_again(self) -> None:
        while True:
            if self._deaths > MAX_DEATHS:
                raise InvariantError(f"{self.trouble.partition(';')[0]}, {self._deaths} times without a finished step")
            await anyio.sleep(0 if self._deaths == 1 else BACKOFF_S * 2 ** (self._deaths - 2))
            self._worker = self._start(self._config)
            try:
                await self._worker.ready()
                break
            except (WorkerDied, UserError) as error:
                log.error("a worker process did not come up", pid=self.pid, why=str(error))
                self._deaths += 1
        self._orders = Orders(self._live.values())
        self.restarts += 1
        self.trouble = ""
        self._outgoing.set()
        log.warning("a worker process took over", pid=self.pid, running=len(self._live))


def _with_pages(config: Config, pages: int) -> Config:
    """Whoever comes next has as many pages as the first found room for: the scheduler counts on them."""
    if config.memory.pages or not pages:
        return config
    return replace(config, memory=replace(config.memory, pages=pages))
