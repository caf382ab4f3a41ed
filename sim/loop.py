"""The simulated shell: arrivals, cancels and step times on a virtual clock, around the production scheduler.

The device executes one step after another.  Time jumps from event to event; where the scheduler's plan repeats and the
cost model can tell the times of the steps, a whole run of steps is one event (``RunDone``), with the same journal and
the same nanoseconds as step by step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

from stepwell.core import kinds
from stepwell.core.errors import InvariantError, PolicyError
from stepwell.core.events import Cancel, Event, StepDone, StepFailed, Submitted, Timer
from stepwell.core.instructions import Instruction, Launch, PolicyFault, Wake
from stepwell.core.protocols import CostModel
from stepwell.core.scheduler import Scheduler
from stepwell.core.types import FOREVER, NO_TIME, BoxedId, RequestId, StepId
from stepwell.sim.backend import Fault, FaultScript, no_faults
from stepwell.sim.closed_loop import ClosedLoop
from stepwell.sim.extrapolation import ESTIMATED, StepTimeSource, counting
from stepwell.sim.mirror import BatchMirror
from stepwell.sim.workload.request import TraceRequest

Observer = Callable[[int, Sequence[Event], Sequence[Instruction]], None]
"""Called after every batch of events with its time, the events, and the instructions they led to."""


class Simulator:
    """One run.  ``requests`` are those of a ``Workload``, in its order.

    If none of them follows another, the ``k``-th (from 1) has id ``k``; else see ``ClosedLoop``, and ``places``.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cost: CostModel,
        requests: Sequence[TraceRequest],
        *,
        observers: Sequence[Observer] = (),
        max_tokens: int = FOREVER,
        faults: FaultScript = no_faults,
        jumps: bool = True,
    ) -> None:
        self.scheduler = scheduler
        self.now_ns = 0
        self._cost = cost
        closed = self._closed = ClosedLoop(requests) if any(each.after for each in requests) else None
        self._requests = requests if closed is None else closed.arrived  # by id - 1
        self._answers = any(each.answer_keys for each in requests)
        self._leavers = any(each.cancel_tokens for each in requests)
        self._observers = observers if closed is None else [*observers, self._follow_ends]
        self._max_tokens = max_tokens
        self._faults = None if faults is no_faults else faults
        self._counting = counting(cost)
        self._jumps = jumps and scheduler.state.limits.depth == 1 and faults is no_faults
        live = scheduler.state.requests
        arrived = self._requests
        leavers = self._leavers

        def length_of(id: BoxedId) -> int:
            if id not in live:
                return 0
            return _said(arrived[id - 1]) if leavers else arrived[id - 1].output_tokens

        self._mirror = BatchMirror(length_of)
        self._next = 0
        self._cancels = [(each.cancel_ns, id) for id, each in enumerate(arrived, 1) if each.cancel_ns]
        heapify(self._cancels)
        self._arrival_ns = requests[0].arrival_ns if requests else NO_TIME
        self._rare_ns = self._cancels[0][0] if self._cancels else NO_TIME
        self._wake_ns = NO_TIME
        self._queue: deque[Launch] = deque()
        self._done_ns = NO_TIME
        self._done: StepDone | StepFailed = StepDone(0)

    @property
    def arrived(self) -> Sequence[TraceRequest]:
        """By id - 1; where requests follow others, those that have arrived so far, else all."""
        return self._requests

    @property
    def places(self) -> Sequence[int]:
        """Of the requests that have arrived, by id - 1: their places in the workload, from 1."""
        return range(1, self._next + 1) if self._closed is None else self._closed.places

    def run(self, progress: Callable[[int], None] | None = None) -> None:
        """Run to the end: every request has ended.  ``progress`` is told now and then how many have arrived.

        Raises ``PolicyError`` if the policy breaks a rule, ``InvariantError`` if requests are left with nothing to do.
        """
        scheduler, observers, queue = self.scheduler, self._observers, self._queue
        arrive = self._arrive if self._closed is None else self._arrive_closed
        wake, fault = Wake, PolicyFault
        turns = 0
        while True:
            now_ns = self._done_ns
            if self._arrival_ns < now_ns:
                now_ns = self._arrival_ns
            if self._rare_ns < now_ns:
                now_ns = self._rare_ns
            if now_ns >= NO_TIME:
                break
            events: list[Event] = []
            if self._done_ns == now_ns:
                self._report(events)
                self._done_ns = NO_TIME
                if queue:
                    self._start(now_ns)  # the device goes on by itself
            if self._rare_ns == now_ns:
                self._rare(now_ns, events)
            if self._arrival_ns == now_ns:
                arrive(now_ns, events)
            if not events:
                continue  # whoever would have left had ended
            out = scheduler.handle(now_ns, events)
            for observe in observers:
                observe(now_ns, events, out)
            for instruction in out:
                kind = type(instruction)
                if kind is kinds.LAUNCH:
                    queue.append(instruction)  # type: ignore[arg-type]
                elif kind is kinds.FINISHED:
                    ended: BoxedId = instruction.request  # type: ignore[union-attr]
                    self._mirror.release(ended)
                elif kind is wake or kind is fault:
                    self._follow(instruction)
            if queue and self._done_ns == NO_TIME:
                self._start(now_ns)
            turns += 1
            if progress is not None and not turns & 1023:
                progress(self._next)
        self.now_ns = self.scheduler.state.now_ns
        if self.scheduler.state.requests:
            left = list(self.scheduler.state.requests)
            raise InvariantError(f"I5 progress: the simulation ran dry with requests {left[:10]} unfinished")

    @property
    def step_times(self) -> StepTimeSource:
        """How far the step times so far are to be trusted."""
        return ESTIMATED if self._counting is None else self._counting.source()

    def _report(self, events: list[Event]) -> None:
        """What the device reports now, and the cancels of clients who got the last token that they waited for.

        Requests that ended meanwhile (a cancel) are not reported.
        """
        done, live = self._done, self.scheduler.state.requests
        events.append(done)
        if type(done) is kinds.STEP_FAILED:
            self._queue.clear()
            done.blamed = [id for id in done.blamed if id in live]
            return
        assert type(done) is kinds.STEP_DONE
        ended = done.ended
        if ended:
            ended = done.ended = [id for id in ended if id in live]
            if self._leavers:
                done.ended = [id for id in ended if not _leaves(self._requests[id - 1])]
                events += [self._cancel(id) for id in ended if _leaves(self._requests[id - 1])]
        if self._answers:
            last = next((step.last for step in self.scheduler.state.inflight if step.id == done.step), ())
            ending = dict.fromkeys([*done.ended, *(each.id for each in last)])
            keyed = ((id, self._requests[id - 1].answer_keys) for id in ending)
            done.keys = [(id, list(keys)) for id, keys in keyed if keys]

    def _cancel(self, id: RequestId) -> Cancel:
        return Cancel(id, list(self._requests[id - 1].answer_keys))

    def _rare(self, now_ns: int, events: list[Event]) -> None:
        """Cancels by clients whose requests live, and the policy's alarm."""
        cancels = self._cancels
        while cancels and cancels[0][0] == now_ns:
            _, id = heappop(cancels)
            if id in self.scheduler.state.requests:
                events.append(self._cancel(id))
        if self._wake_ns == now_ns:
            self._wake_ns = NO_TIME
            events.append(Timer())
        self._rare_ns = min(self._wake_ns, cancels[0][0] if cancels else NO_TIME)

    def _arrive(self, now_ns: int, events: list[Event]) -> None:
        requests, index = self._requests, self._next
        arrival_ns = now_ns
        while arrival_ns == now_ns:
            request = requests[index]
            index += 1
            events.append(
                kinds.SUBMITTED(
                    index,
                    request.prompt_tokens,
                    request.max_tokens or self._max_tokens,
                    request.klass,
                    request.tenant,
                    request.expires_ns,
                    request.keys,
                    request.priority,
                    request.program,
                    request.parent,
                )
            )
            arrival_ns = requests[index].arrival_ns if index < len(requests) else NO_TIME
        self._next = index
        self._arrival_ns = arrival_ns

    def _arrive_closed(self, now_ns: int, events: list[Event]) -> None:
        """The same where some follow others.  Patience begins with arrival, whenever that is."""
        assert self._closed is not None
        for id, it in self._closed.arrive(now_ns):
            late_ns = now_ns - it.arrival_ns
            events.append(
                Submitted(
                    id,
                    it.prompt_tokens,
                    it.max_tokens or self._max_tokens,
                    it.klass,
                    it.tenant,
                    it.expires_ns and it.expires_ns + late_ns,
                    it.keys,
                    it.priority,
                    it.program,
                    self._closed.id_of(it.parent),
                )
            )
            if it.cancel_ns > it.arrival_ns:
                heappush(self._cancels, (it.cancel_ns + late_ns, id))
        self._next = len(self._requests)
        self._arrival_ns = self._closed.next_ns
        self._rare_ns = min(self._wake_ns, self._cancels[0][0] if self._cancels else NO_TIME)

    def _follow_ends(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        """An observer: who ended lets others come."""
        assert self._closed is not None
        self._closed.follow(now_ns, out)
        self._arrival_ns = self._closed.next_ns

    def _follow(self, instruction: Instruction) -> None:
        if isinstance(instruction, Wake):
            self._wake_ns = instruction.at_ns
            self._rare_ns = min(self._wake_ns, self._cancels[0][0] if self._cancels else NO_TIME)
        elif isinstance(instruction, PolicyFault):
            raise PolicyError(
                policy=instruction.policy,
                step=instruction.step,
                rule=instruction.rule,
                detail=instruction.detail,
            )

    def _start(self, now_ns: int) -> None:
        """The device takes the next step, or the next run of steps."""
        launch = self._queue.popleft()
        step = launch.step
        if self._faults is not None:
            fault = self._faults(step)
            if fault is not None:
                self._fail(now_ns, step, fault)
                return
        mirror = self._mirror
        ended = mirror.apply(launch)
        shape = mirror.shape
        if self._jumps and self.scheduler.repeats.left and not ended:
            further, until_ns = self.scheduler.repeats.repeatable(mirror.quiet_ticks())
            if further > 0:
                until_ns = min(min(until_ns, self._arrival_ns), self._rare_ns)
                ends = self._cost.run_ns(shape, now_ns, further + 1, until_ns)
                further = len(ends) - 1
                if further:
                    if self._counting is not None:
                        self._counting.run(shape, further + 1)
                    ended = mirror.repeat(further)
                    done_ns = self._done_ns = ends.pop()
                    run: list[Event] = [kinds.RUN_DONE(step, ends)]
                    out = self.scheduler.handle(ends[-1], run)
                    for observe in self._observers:
                        observe(ends[-1], run, out)
                    self._done = kinds.STEP_DONE(step + further, ended, done_ns - ends[-1])
                    return
        if self._counting is not None:
            self._counting.step(shape)
        elapsed_ns, copy_ns = mirror.times(self._cost)
        self._done_ns = now_ns + elapsed_ns
        self._done = kinds.STEP_DONE(step, ended, elapsed_ns, copy_ns)

    def _fail(self, now_ns: int, step: StepId, fault: Fault) -> None:
        """The step takes the time of an empty one, and all steps behind it are void."""
        self._mirror.reset()
        self._done_ns = now_ns + self._cost.step_ns(type(self._mirror.shape)())
        self._done = StepFailed(step, list(fault.blamed), fault.reason, fault.device_lost)


def _leaves(request: TraceRequest) -> bool:
    """Whether its client goes before the answer ends."""
    return 0 < request.cancel_tokens < request.output_tokens


def _said(request: TraceRequest) -> int:
    """Output tokens until its end, or until its client has enough."""
    return request.cancel_tokens if _leaves(request) else request.output_tokens
