"""The live shell: one event loop around the scheduler, a backend that executes steps, and streams to clients.

Everything that happens (arrivals, cancels, finished steps) goes into one inbox; the engine takes what is there as one
batch of events at one time, lets the scheduler decide, launches the next step first, and hands out tokens after that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import anyio
import structlog
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from stepwell.core.answer_keys import AnswerKeys
from stepwell.core.clock import Clock
from stepwell.core.engine_steps import StepsUnderWay
from stepwell.core.errors import CapacityError, InvariantError, UserError
from stepwell.core.events import (
    Cancel,
    Event,
    Pin,
    StepDone,
    StepFailed,
    Stop,
    Submitted,
    Timer,
    UsePolicy,
    in_order,
)
from stepwell.core.instructions import Finished, Instruction, Launch, PolicyFault, Rejected, Wake
from stepwell.core.observers import Observer as Observer
from stepwell.core.observers import TokenObserver as TokenObserver
from stepwell.core.placement import Place, as_place
from stepwell.core.protocols import Backend, StepResult
from stepwell.core.registry import check_servable
from stepwell.core.sampling import GREEDY, SamplingParams, TokenLogprob
from stepwell.core.scheduler import Scheduler
from stepwell.core.streams import Stream
from stepwell.core.types import MAX_NAME, MAX_PRIORITY, RequestId

log = structlog.get_logger("stepwell.engine")

FALLBACK_POLICY = "fcfs"
"""Takes over when a policy breaks a rule."""

SLICE_NS = 2_000_000
"""Tokens are handed out for so long at a time before the event loop sees to everything else."""

PER_LOOK = 32
"""Tokens between two looks at the clock while they are handed out."""


class Engine:
    """One scheduler, one backend (somewhere: see ``core.placement``), one clock.

    Use ``run`` in a task, and ``submit`` from others of the same loop.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        backend: Backend | Place,
        clock: Clock,
        *,
        observers: Sequence[Observer] = (),
        token_observer: TokenObserver | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.failed = ""
        """Why the engine stopped serving; empty while it is healthy."""
        self.decided: Callable[[int], None] = lambda took_ns: None
        """Told how long the scheduler took over each batch of events."""
        self.place = as_place(backend)
        self._clock = clock
        self._observers = observers
        self._token_observer = token_observer
        self._streams: dict[RequestId, Stream] = {}
        self._keys = AnswerKeys(scheduler.state)
        self._inbox: list[Event] = []
        self._results: list[StepResult] = []
        self._news = anyio.Event()
        self._steps = StepsUnderWay(self.place, clock, self._step_over)
        self._idle = anyio.Event()
        self._wake_ns = 0
        self._alarm: anyio.CancelScope | None = None
        self._last_id: RequestId = scheduler.last_id
        self._closed = False
        self._tasks: TaskGroup

    # ------------------------------------------------------------------------------------------- the clients' side

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        klass: str = "chat",
        tenant: str = "default",
        priority: int = 0,
        program: str = "",
        expires_ns: int = 0,
        keys: Sequence[int] = (),
        salt: bytes = b"",
        sampling: SamplingParams = GREEDY,
        parent: RequestId = 0,
    ) -> Stream:
        """Hand in a request; the answer comes through the stream, and so does a refusal for want of room.

        ``keys`` identify its full pages (``page_keys``), for an allocator that reuses prefixes; the ``salt`` they were
        made with makes those of the answer.  ``parent`` is an earlier request with the same prompt, whose computation
        this one shares.  Raises ``UserError`` for an empty prompt, ``max_tokens`` below 1, an unknown class, or a
        priority or a program's name beyond bounds, and ``CapacityError`` if the engine does not serve (any more).
        """
        if not prompt:
            raise UserError("must hold at least one token", field="prompt")
        if max_tokens < 1:
            raise UserError(f"must be at least 1, got {max_tokens}", field="max_tokens")
        if self.scheduler.state.backlog.klass(klass) is None:
            raise UserError(f"unknown class {klass!r}", field="class")
        if abs(priority) > MAX_PRIORITY:
            raise UserError(f"must be between -{MAX_PRIORITY} and {MAX_PRIORITY}, got {priority}", field="priority")
        if len(program) > MAX_NAME:
            raise UserError(f"at most {MAX_NAME} letters", field="program")
        if self._closed:
            raise CapacityError(self.failed or "the engine is shutting down", code="not_serving")
        id = self._last_id + 1
        self.place.admit(id, prompt, max_tokens, sampling)
        self._last_id = id
        stream = self._streams[id] = Stream(id, self._cancel)
        if self._token_observer is not None:
            self._token_observer.prompt(id, prompt)
        if self._idle.is_set():
            self._idle = anyio.Event()
        found = list(keys)
        if sampling.prompt_logprobs >= 0:  # of what is not computed nothing can be said
            found, salt, parent = [], b"", 0
        self._keys.begin(id, prompt, found, salt)
        self.post(Submitted(id, len(prompt), max_tokens, klass, tenant, expires_ns, found, priority, program, parent))
        return stream

    def stop(self, request: RequestId, keep: int) -> None:
        """The text pipeline found a stop string: ``keep`` tokens are the answer.  Ignored if the request has ended."""
        stream = self._streams.get(request)
        if stream is None:
            return
        if not 0 <= keep <= len(stream.tokens):
            raise InvariantError(f"request {request} cannot keep {keep} tokens of {len(stream.tokens)}")
        self.post(Stop(request, keep))

    def use_policy(self, name: str, options: dict[str, object], why: str = "") -> None:
        """Decide by another policy from the next batch of events on.

        Raises ``UserError`` if it cannot be made; the present one then goes on.
        """
        check_servable(self.scheduler.make_policy(name, options))
        self.post(UsePolicy(name, options, why))

    def pin(self, keys: Sequence[int], on: bool) -> None:
        """Keep what ``keys`` identify findable before all that is not pinned; or no longer.

        Raises ``UserError`` if there is no room for as many.
        """
        queued = [key for event in self._inbox if isinstance(event, Pin) and event.on for key in event.keys]
        wanted = list(dict.fromkeys([*queued, *keys])) if on else []
        short = len(wanted) - self.scheduler.state.allocator.pin_room(wanted)
        if short > 0:
            raise UserError(
                f"has {len(keys)} full pages, and {max(0, len(keys) - short)} of them can be pinned", field="messages"
            )
        self.post(Pin(list(keys), on))

    def close(self) -> None:
        """Accept nothing more, and let ``run`` return once all requests have ended."""
        self._closed = True
        self._news.set()

    async def drained(self) -> None:
        """Wait until no request is left."""
        while self._streams:
            await self._idle.wait()

    def _cancel(self, request: RequestId) -> None:
        for index, event in enumerate(self._inbox if request > self.scheduler.last_id else ()):
            if isinstance(event, Submitted) and event.request == request:
                # It never reached the scheduler, where a cancel would come before the arrival of the same instant.
                del self._inbox[index]
                self._end(Finished(request, "cancelled", 0))
                return
        self.post(Cancel(request))

    def post(self, event: Event) -> None:
        """Goes to the scheduler with the next batch.  From outside: ``Pause`` and ``ResetCache`` of an operator."""
        self._inbox.append(event)
        self._news.set()

    # ------------------------------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Serve until ``close`` is called and every request has ended, or until a law is broken (see ``failed``).

        However it ends, cancelled from outside included, no stream is left waiting and the backend is closed.
        """
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._look_after_place)
                self._tasks.start_soon(self._execute)
                await self._serve()
                self._dismiss()
                self._tasks.cancel_scope.cancel()
        finally:
            self._closed = True
            self._dismiss()
            self.place.close()

    async def _serve(self) -> None:
        while not (self.failed or (self._closed and not self._streams and not self.scheduler.state.inflight)):
            await self._news.wait()
            await self._clock.settle()
            self._news = anyio.Event()
            if not self._inbox or self.failed:
                continue
            events, self._inbox = in_order(self._inbox), []
            results, self._results = self._results, []
            self._keys.complete(events, results, self._streams)
            try:
                out = self._turn(events)
                if self._steps:
                    await checkpoint()  # the step begins before anybody is told of the one before it
                await self._hand_out(results, out)
            except Exception as error:
                self._break_down(error, events)

    def _turn(self, events: list[Event]) -> Sequence[Instruction]:
        now_ns = self._clock.now_ns()
        try:
            out = self.scheduler.handle(now_ns, events)
        except Exception:
            # Observers see the events all the same, so that a replay of the journal breaks down at the same place.
            self._observe(now_ns, events, ())
            raise
        self.decided(self._clock.now_ns() - now_ns)
        self._observe(now_ns, events, out)
        self._follow(out)
        return out

    async def _hand_out(self, results: Sequence[StepResult], out: Sequence[Instruction]) -> None:
        """Tokens in the order of their steps, then ends.  If that takes long, everybody else gets a turn in between.

        Listeners may call ``submit``, ``stop`` and ``cancel`` from inside: those only post events, or end a request
        that the scheduler has not seen.
        """
        now_ns = self._clock.now_ns
        until_ns = now_ns() + SLICE_NS
        ends = {each.request: each.tokens for each in out if isinstance(each, Finished)}
        for result in results:
            for request, first, rows in result.prompt_logprobs:
                if request in self._streams:
                    self._streams[request].push_prompt(first, rows)
            for request, why in result.spoiled:
                if request in self._streams:
                    self._streams[request].spoil(why)
            tokens = self._counting(result, ends)
            for start in range(0, len(tokens), PER_LOOK):
                self._deliver(tokens[start : start + PER_LOOK], result.logprobs)
                if now_ns() > until_ns:
                    await checkpoint()
                    until_ns = now_ns() + SLICE_NS
        for instruction in out:
            if isinstance(instruction, Finished | Rejected):
                self._end(instruction)
        self._keys.look(self._streams)

    def _counting(self, result: StepResult, ends: Mapping[RequestId, int]) -> list[tuple[RequestId, int]]:
        """The tokens that are part of an answer: not those of requests that had ended before.

        With several steps in flight one batch of events may hold a request's last step and the one after it.
        """
        streams = self._streams
        tokens = [row for row in result.tokens if row[0] in streams]
        if ends:
            tokens = [row for row in tokens if row[0] not in ends or len(streams[row[0]].tokens) < ends[row[0]]]
        if self._token_observer is not None and tokens:
            self._token_observer.sampled(result.step, tokens)
        return tokens

    def _deliver(self, tokens: Sequence[tuple[RequestId, int]], logprobs: Mapping[RequestId, TokenLogprob]) -> None:
        streams = self._streams
        for request, token in tokens:
            stream = streams.get(request)
            if stream is not None:
                stream.push(token, logprobs.get(request))

    def _observe(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        for observe in self._observers:
            observe(now_ns, events, out)

    def _follow(self, out: Sequence[Instruction]) -> None:
        for instruction in out:
            if isinstance(instruction, Launch):
                self._steps.begin(instruction)
            elif isinstance(instruction, Wake):
                self._set_alarm(instruction.at_ns)
            elif isinstance(instruction, PolicyFault):
                self._fall_back(instruction)

    def _fall_back(self, fault: PolicyFault) -> None:
        """Every request is kept; the next batch of events, in this very instant, is decided by the simplest policy."""
        why = f"policy {fault.policy} broke the rule {fault.rule!r}: {fault.detail}"
        if fault.policy == FALLBACK_POLICY:
            raise InvariantError(f"{why}; there is nothing to fall back to")
        log.error("policy fault, falling back", to=FALLBACK_POLICY, step=fault.step, why=why)
        self.use_policy(FALLBACK_POLICY, {}, why)

    def _end(self, end: Finished | Rejected) -> None:
        self.place.release(end.request)
        self._keys.end(end.request)
        stream = self._streams.pop(end.request, None)
        if stream is None:
            return
        if isinstance(end, Finished):
            stream.finish(end)
        else:
            stream.reject(end)
        if not self._streams:
            self._idle.set()
            self._news.set()

    def _set_alarm(self, at_ns: int) -> None:
        """The latest wish is the one that counts."""
        if self._wake_ns == at_ns:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._wake_ns = at_ns
        self._alarm = anyio.CancelScope()
        self._tasks.start_soon(self._ring, at_ns, self._alarm)

    async def _ring(self, at_ns: int, alarm: anyio.CancelScope) -> None:
        with alarm:
            await self._clock.sleep_until(at_ns)
            if alarm is self._alarm:
                self._wake_ns = 0
                self.post(Timer())

    # ------------------------------------------------------------------------------------------- the device

    async def _look_after_place(self) -> None:
        try:
            await self.place.run(self._steps.lost)
        except Exception as error:
            self._break_down(error, ())

    async def _execute(self) -> None:
        try:
            await self._steps.run()
        except Exception as error:
            self._break_down(error, ())

    def _step_over(self, result: StepResult) -> None:
        live = self.scheduler.state.requests
        if result.failed:
            blamed = [id for id in result.blamed if id in live]
            self.post(StepFailed(result.step, blamed, result.failed, result.device_lost))
        else:
            ended = [id for id in result.ended if id in live]
            self._results.append(result)
            self.post(StepDone(result.step, ended, result.elapsed_ns, result.copy_ns))

    def _break_down(self, error: Exception, during: Sequence[object]) -> None:
        """A law is broken: stop serving.  Clients are told when the tokens that are being handed out have been."""
        self.failed = str(error) if isinstance(error, InvariantError) else f"{type(error).__name__}: {error}"
        log.critical("the engine stops serving", reason=self.failed, during=repr(during)[:2000], exc_info=error)
        self._closed = True
        self._news.set()

    def _dismiss(self) -> None:
        """No stream is left waiting."""
        streams, self._streams = list(self._streams.values()), {}
        self._idle.set()
        for stream in streams:
            if self.failed:
                stream.break_down(self.failed)
            else:
                stream.shut_down()
