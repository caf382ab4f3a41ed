"""The live shell: one event loop around the scheduler, a backend that executes steps, and streams to clients.

Everything that happens (arrivals, cancels, finished steps) goes into one inbox; the engine takes what is there as one
batch of events at one time, lets the scheduler decide, launches the next step first, and hands out tokens after that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import anyio
import structlog

from stepwell.core.clock import Clock
from stepwell.core.errors import CapacityError, InvariantError, UserError
from stepwell.core.events import Cancel, Event, StepDone, StepFailed, Stop, Submitted, Timer, UsePolicy, in_order
from stepwell.core.instructions import Finished, Instruction, Launch, PolicyFault, Rejected, Wake
from stepwell.core.protocols import Backend, StepResult
from stepwell.core.scheduler import Scheduler
from stepwell.core.streams import Stream
from stepwell.core.types import RequestId

log = structlog.get_logger("stepwell.engine")

Observer = Callable[[int, Sequence[Event], Sequence[Instruction]], None]
"""Called after every batch of events with its time, the events, and the instructions they led to."""

FALLBACK_POLICY = "fcfs"
"""Takes over when a policy breaks a rule."""


class Engine:
    """One scheduler, one backend, one clock.  Use ``run`` in a task, and ``submit`` from others of the same loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        backend: Backend,
        clock: Clock,
        *,
        observers: Sequence[Observer] = (),
        token_observer: Callable[[StepResult], None] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.failed = ""
        """Why the engine stopped serving; empty while it is healthy."""
        self._backend = backend
        self._clock = clock
        self._observers = observers
        self._token_observer = token_observer
        self._streams: dict[RequestId, Stream] = {}
        self._inbox: list[Event] = []
        self._results: list[StepResult] = []
        self._news = anyio.Event()
        self._launches: deque[Launch] = deque()
        self._launched = anyio.Event()
        self._idle = anyio.Event()
        self._wake_ns = 0
        self._last_id: RequestId = 0
        self._closed = False
        self._tasks: anyio.abc.TaskGroup

    # ------------------------------------------------------------------------------------------- the clients' side

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        klass: str = "chat",
        tenant: str = "default",
        expires_ns: int = 0,
        keys: Sequence[int] = (),
    ) -> Stream:
        """Hand in a request; the answer comes through the stream, and so does a refusal for want of room.

        Raises ``UserError`` for an empty prompt, ``max_tokens`` below 1 or an unknown class, and ``CapacityError`` if
        the engine does not serve (any more).
        """
        if not prompt:
            raise UserError("must hold at least one token", field="prompt")
        if max_tokens < 1:
            raise UserError(f"must be at least 1, got {max_tokens}", field="max_tokens")
        if self.scheduler.state.backlog.rank(klass) is None:
            raise UserError(f"unknown class {klass!r}", field="class")
        if self._closed:
            raise CapacityError(self.failed or "the engine is shutting down", code="not_serving")
        self._last_id += 1
        id = self._last_id
        stream = self._streams[id] = Stream(id, self._cancel)
        self._backend.admit(id, prompt, max_tokens)
        self._idle = anyio.Event()
        self._post(Submitted(id, len(prompt), max_tokens, klass, tenant, expires_ns, list(keys)))
        return stream

    def stop(self, request: RequestId, keep: int) -> None:
        """The text pipeline found a stop string: ``keep`` tokens are the answer."""
        self._post(Stop(request, keep))

    def use_policy(self, name: str, options: dict[str, object], why: str = "") -> None:
        """Decide by another policy from the next batch of events on."""
        self._post(UsePolicy(name, options, why))

    def close(self) -> None:
        """Accept nothing more, and let ``run`` return once all requests have ended."""
        self._closed = True
        self._news.set()

    async def drained(self) -> None:
        """Wait until no request is left."""
        while self._streams:
            await self._idle.wait()

    def _cancel(self, request: RequestId) -> None:
        for index, event in enumerate(self._inbox):
            if isinstance(event, Submitted) and event.request == request:
                # It never reached the scheduler, where a cancel would come before the arrival of the same instant.
                del self._inbox[index]
                self._end(Finished(request, "cancelled", 0))
                return
        self._post(Cancel(request))

    def _post(self, event: Event) -> None:
        self._inbox.append(event)
        self._news.set()

    # ------------------------------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Serve until ``close`` is called and every request has ended, or until a law is broken (see ``failed``)."""
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._execute)
            while not (self._closed and not self._streams):
                await self._news.wait()
                await self._clock.settle()
                self._news = anyio.Event()
                if not self._inbox:
                    continue
                events, self._inbox = in_order(self._inbox), []
                try:
                    self._turn(events)
                except InvariantError as error:
                    self._break_down(str(error))
                    break
            self._tasks.cancel_scope.cancel()
        self._backend.close()

    def _turn(self, events: list[Event]) -> None:
        now_ns = self._clock.now_ns()
        results, self._results = self._results, []
        out = self.scheduler.handle(now_ns, events)
        for observe in self._observers:
            observe(now_ns, events, out)
        self._launch(out)
        for result in results:
            if self._token_observer is not None and result.tokens:
                self._token_observer(result)
            for request, token in result.tokens:
                stream = self._streams.get(request)
                if stream is not None:
                    stream.push(token)
        self._conclude(out)

    def _launch(self, out: Sequence[Instruction]) -> None:
        for instruction in out:
            if isinstance(instruction, Launch):
                self._launches.append(instruction)
                self._launched.set()
            elif isinstance(instruction, Wake):
                self._wake_ns = instruction.at_ns
                self._tasks.start_soon(self._ring, instruction.at_ns)
            elif isinstance(instruction, PolicyFault):
                why = f"policy {instruction.policy} broke the rule {instruction.rule!r}: {instruction.detail}"
                log.error("policy fault, falling back", to=FALLBACK_POLICY, step=instruction.step, why=why)
                self.use_policy(FALLBACK_POLICY, {}, why)

    def _conclude(self, out: Sequence[Instruction]) -> None:
        for instruction in out:
            if isinstance(instruction, Finished | Rejected):
                self._backend.release(instruction.request)
                self._end(instruction)

    def _end(self, end: Finished | Rejected) -> None:
        stream = self._streams.pop(end.request)
        if isinstance(end, Finished):
            stream.finish(end)
        else:
            stream.reject(end)
        if not self._streams:
            self._idle.set()
            self._news.set()

    async def _ring(self, at_ns: int) -> None:
        await self._clock.sleep_until(at_ns)
        if self._wake_ns == at_ns:
            self._wake_ns = 0
            self._post(Timer())

    # ------------------------------------------------------------------------------------------- the device

    async def _execute(self) -> None:
        """Execute launches one after another.  A backend that only says how long a step takes is waited for."""
        while True:
            while not self._launches:
                self._launched = anyio.Event()
                await self._launched.wait()
            batch = self._launches.popleft()
            start_ns = self._clock.now_ns()
            result = self._backend.execute(batch)
            await self._clock.sleep_until(start_ns + result.elapsed_ns)
            live = self.scheduler.state.requests
            if result.failed:
                self._launches.clear()
                blamed = [id for id in result.blamed if id in live]
                self._post(StepFailed(result.step, blamed, result.failed, result.device_lost))
            else:
                ended = [id for id in result.ended if id in live]
                self._results.append(result)
                self._post(StepDone(result.step, ended, result.elapsed_ns, result.copy_ns))

    def _break_down(self, reason: str) -> None:
        """A law is broken: stop serving, and tell every client."""
        log.critical("invariant broken, the engine stops serving", reason=reason)
        self.failed = reason
        self._closed = True
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.break_down(reason)
        self._idle.set()
