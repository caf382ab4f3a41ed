"""The scheduler: events go in, instructions come out.

A pure state machine.  It reads no clock, does no I/O and knows no model; time enters with the events, and everything
it decides leaves as instructions.  Which request runs is the policy's choice; that budgets, pages and the life of each
request are kept is this module's.

``handle`` takes a batch of events that carry one time, updates the tables, and launches steps while fewer than
``depth`` are in flight.  A plan may repeat: then the next step is launched without asking the policy, until anything
happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import msgspec

from stepwell.core import kinds
from stepwell.core.applying import PlanApplier
from stepwell.core.draft import decoding
from stepwell.core.errors import PLUGIN_RAISES, InvariantError, describe
from stepwell.core.events import (
    Cancel,
    Event,
    Pause,
    Pin,
    ResetCache,
    RunDone,
    StepDone,
    StepFailed,
    Stop,
    Submitted,
    Timer,
    UsePolicy,
)
from stepwell.core.instructions import Blocked, CacheReset, Instruction, PolicyFault, Wake
from stepwell.core.intake import take_in
from stepwell.core.invariants import check_state
from stepwell.core.limits import AUDIT_TURNS, MAX_BARREN_PLANS, MAX_IDLE_WAKES, MAX_SILENT_STEPS, SchedulerLimits
from stepwell.core.plan import Obstacle, StepPlan
from stepwell.core.plan_check import BrokenRuleError, check_plan
from stepwell.core.protocols import KVAllocator, SchedulerPolicy
from stepwell.core.recovery import recover
from stepwell.core.runs import Repeats
from stepwell.core.state import State, StepRecord
from stepwell.core.succession import introduce, memory_of
from stepwell.core.types import (
    DECODING,
    FINISHED,
    FOREVER,
    PREFILLING,
    SWAPPED,
    SWAPPING_IN,
    SWAPPING_OUT,
    BoxedId,
    RequestId,
)

MakePolicy = Callable[[str, dict[str, object]], SchedulerPolicy]


class Scheduler:
    """See the module.  ``make_policy`` builds policies by name, at the start and when a ``UsePolicy`` event asks."""

    def __init__(
        self,
        limits: SchedulerLimits,
        allocator: KVAllocator,
        make_policy: MakePolicy,
        policy: str = "fcfs",
        options: dict[str, object] | None = None,
        *,
        honour_repeats: bool = True,
    ) -> None:
        if limits.token_budget < limits.running_limit:
            # Every running request decodes one token a step.
            limits = msgspec.structs.replace(limits, running_limit=limits.token_budget)
        self.policy_name = policy
        self.policy_options = options or {}
        self.honour_repeats = honour_repeats
        self.make_policy = make_policy
        self.state = State(limits, allocator, make_policy(policy, self.policy_options))
        self._applier = PlanApplier(self.state)
        self._depth = limits.depth
        self.max_tokens = allocator.total_pages * allocator.page_size
        """Prompt and output tokens that one request may have: what the pool holds, or ``max_context`` if less."""
        if limits.max_context:
            self.max_tokens = min(self.max_tokens, limits.max_context)
        self.last_id: RequestId = 0
        self.barren = 0
        self.idle_wakes = 0
        self._silent_limit = MAX_SILENT_STEPS + 2 * allocator.total_pages * allocator.page_size
        self.faulted = False
        self.paused = False
        """An operator wants no step launched."""
        self._audit_in = AUDIT_TURNS
        self.expiries: list[tuple[int, RequestId]] = []
        self.repeats = Repeats(self.state, self.expiries)
        self.blocked: Obstacle | None = None
        self._handlers: dict[type, Callable[..., None]] = {
            RunDone: self.repeats.take,
            StepFailed: self._step_failed,
            Cancel: self._cancel,
            Stop: self._stop,
            Timer: self._timer,
            Pin: self._pin,
            ResetCache: self._reset_cache,
            Pause: self._pause,
            UsePolicy: self._use_policy,
        }

    def handle(self, now_ns: int, events: Sequence[Event]) -> list[Instruction]:
        """Take in events that happened at ``now_ns`` and decide.

        Raises ``InvariantError`` if time runs backwards, a step is reported out of order, or a law is broken.
        """
        state = self.state
        if now_ns < state.now_ns:
            raise InvariantError(f"clock monotone: {now_ns} ns comes after {state.now_ns} ns")
        state.now_ns = now_ns
        self.barren = 0
        out: list[Instruction] = []
        state.out = out
        for event in events:
            if type(event) is kinds.STEP_DONE:
                self._step_done(event)
            elif type(event) is kinds.SUBMITTED:
                self._submitted(event)
            else:
                self._handlers[type(event)](event)
        if self.expiries and self.expiries[0][0] <= now_ns:
            self._expire()
        while len(state.inflight) < self._depth and self._launch():
            pass
        if self.paused and self.expiries:
            out.append(Wake(self.expiries[0][0]))  # nobody plans, so nobody else names it
        self._audit_in -= 1
        if self._audit_in <= 0:
            self._audit_in = AUDIT_TURNS
            check_state(state)
        return out

    # ------------------------------------------------------------------------------------------- steps

    def _launch(self) -> bool:
        """Launch one step, by repeating or by a new plan; False if there is nothing to do now."""
        state = self.state
        if self.paused or self.faulted or (state.fault is not None and self._observe_failed()):
            return False
        holds = self.repeats.left > 0 and state.now_ns < self.repeats.until_ns
        if holds and len(state.group.growing()) <= state.allocator.free_pages:
            id = state.next_step
            state.out.append(decoding(id, self.repeats.relaunch()))
            return True
        self.repeats.left = 0
        return self._plan()

    def _plan(self) -> bool:
        state = self.state
        if not state.requests:
            return False
        for request in state.joining:
            if request.id in state.loose and request.state is not FINISHED:
                del state.loose[request.id]
                if request.state is PREFILLING:
                    request.move(DECODING, state.now_ns, "first token")
                state.group.join(request)
        state.joining.clear()
        state.view.now_ns = state.now_ns
        state.view.step = state.next_step
        try:
            plan = state.policy.plan(state.view)
            quiet = check_plan(plan, state)
        except BrokenRuleError as broken:
            return self._fail_policy(broken.rule, broken.detail)
        except PLUGIN_RAISES as error:
            return self._fail_policy("plan raised", describe(error))
        step = self._applier.decode(plan) if quiet else self._applier.apply(plan)
        blocked = plan.blocked
        if blocked is not self.blocked:
            self._say_blocked(blocked)
        if state.fault is not None:
            self._observe_failed()
        if step is None:
            return self._nothing_launched(plan, quiet)
        state.next_step += 1
        state.inflight.append(step)
        self.idle_wakes = 0
        self.repeats.until_ns = plan.wake_ns or FOREVER
        repeat = plan.repeat
        if repeat and self.honour_repeats and self._applier.clean and not step.last:
            self.repeats.left = repeat
            self.repeats.launched_ns = state.now_ns
        if state.silent_steps > self._silent_limit:
            self._fail_policy("progress", f"{state.silent_steps} steps in a row sampled no token")
        return True

    def _nothing_launched(self, plan: StepPlan, quiet: bool) -> bool:
        """Whether to ask the policy again at once: its plan had items, but all were refused or took no step."""
        state = self.state
        if state.inflight or self.faulted or not state.requests:
            return False
        if quiet and plan.wake_ns:
            at_ns = min(plan.wake_ns, self.expiries[0][0]) if self.expiries else plan.wake_ns
            state.out.append(Wake(at_ns))
            self.idle_wakes += 1
            if self.idle_wakes > MAX_IDLE_WAKES:
                self._fail_policy("progress", f"woken {self.idle_wakes} times in a row and did nothing")
            return False
        self.barren += not plan.reject
        if self.barren > MAX_BARREN_PLANS:
            return self._fail_policy("progress", f"{self.barren} plans in a row launched nothing")
        return True

    def _say_blocked(self, obstacle: Obstacle | None) -> None:
        """Say who is blocked by what, if it is somebody else or by something else than was said last."""
        said = self.blocked
        self.blocked = obstacle
        if obstacle is None or (said and (said.request, said.reason) == (obstacle.request, obstacle.reason)):
            return
        self.state.out.append(Blocked(obstacle.request, obstacle.reason, obstacle.short))

    def _observe_failed(self) -> bool:
        fault = self.state.fault
        return fault is not None and not self._fail_policy(*fault)

    def _fail_policy(self, rule: str, detail: str) -> bool:
        self.repeats.left = 0
        if not self.faulted:
            self.faulted = True
            self.state.out.append(PolicyFault(self.policy_name, self.state.next_step, rule, detail))
        return False

    def _step_done(self, event: StepDone) -> None:
        state = self.state
        inflight = state.inflight
        done = event.step
        if not inflight or inflight[0].id != done:
            raise InvariantError(f"step {done} is done, but in flight are {[step.id for step in inflight]}")
        step = inflight.popleft()
        state.progress.done = done
        state.speeds.learn(step.prefill, step.pages, step.tick > 0, event.elapsed_ns, event.copy_ns)
        allocator = state.allocator
        if self.repeats.left and allocator.returning_pages:
            self.repeats.left = 0
        allocator.step_done(done)
        if step.computed:
            self.repeats.left = 0  # somebody in line may need fewer pages now
            state.publish(step)
        answers = event.keys
        if answers:
            self.repeats.left = 0
            for id, keys in answers:
                state.publish_answer(id, keys)
        if step.sampled and state.prompts_done(step):
            self.repeats.left = 0  # somebody in line may share a prompt now, or be in line only now
        ended = event.ended
        if ended:
            self.repeats.left = 0
            boxed: list[BoxedId] = ended
            for id in boxed:
                request = state.requests.get(id)
                if request is None:
                    continue
                if not step.samples(request):
                    raise InvariantError(f"request {id} is said to end in step {done}, which sampled nothing for it")
                state.finish(request, "stop", state.visible_tokens(request))
        if step.last or step.copies:
            self.repeats.left = 0
            self._settle(step)

    def _settle(self, step: StepRecord) -> None:
        """What a finished step changes beyond one more token for everybody."""
        state = self.state
        for request in step.last:
            if request.state is not FINISHED:
                state.finish(request, "length", request.generated)
        for request in step.copies:
            if request.last_step != step.id:
                continue
            if request.state is SWAPPING_OUT:
                request.move(SWAPPED, state.now_ns, "copied to the host")
            elif request.state is SWAPPING_IN:
                decoding = request.pending == 1 and request.generated > 0
                request.move(DECODING if decoding else PREFILLING, state.now_ns, "copied back")

    def _step_failed(self, event: StepFailed) -> None:
        self.repeats.left = 0
        recover(self.state, event)

    # ------------------------------------------------------------------------------------------- requests

    def _submitted(self, event: Submitted) -> None:
        self.repeats.left = 0
        state = self.state
        request = take_in(state, event, self.last_id, self.max_tokens)
        self.last_id = event.request
        if request is None:
            return
        if request.expires_ns:
            heappush(self.expiries, (request.expires_ns, request.id))
            if len(self.expiries) > 2 * state.backlog.requests + 64:
                live = state.requests
                self.expiries[:] = sorted(
                    each for each in self.expiries if each[1] in live and not live[each[1]].started
                )
        state.arrive(request)

    def _cancel(self, event: Cancel) -> None:
        self.repeats.left = 0
        request = self.state.requests.get(event.request)
        if request is not None:
            if event.keys:
                self.state.publish_answer(request.id, event.keys)
            self.state.finish(request, "cancelled", self.state.visible_tokens(request))

    def _stop(self, event: Stop) -> None:
        self.repeats.left = 0
        request = self.state.requests.get(event.request)
        if request is None:
            return
        if not 0 <= event.keep <= self.state.visible_tokens(request):
            raise InvariantError(f"request {event.request} cannot keep {event.keep} tokens, it has fewer")
        if event.keys:
            self.state.publish_answer(request.id, event.keys)
        self.state.finish(request, "stop", event.keep)

    def _expire(self) -> None:
        self.repeats.left = 0
        state = self.state
        while self.expiries and self.expiries[0][0] <= state.now_ns:
            _, id = heappop(self.expiries)
            request = state.requests.get(id)
            if request is not None and not request.started:
                state.finish(request, "expired", 0)

    # ------------------------------------------------------------------------------------------- policies

    def _timer(self, event: Timer) -> None:
        self.repeats.left = 0

    def _pin(self, event: Pin) -> None:
        self.repeats.left = 0
        self.state.allocator.pin(event.keys, event.on)

    def _reset_cache(self, event: ResetCache) -> None:
        self.repeats.left = 0
        self.state.out.append(CacheReset(self.state.allocator.forget() or 0))

    def _pause(self, event: Pause) -> None:
        self.repeats.left = 0
        self.paused = event.on

    def _use_policy(self, event: UsePolicy) -> None:
        """Decide by another policy from here on, rebuilt from the live requests.

        The same policy made anew (say, with other options) keeps its memory, unless it has failed.
        """
        keeps = event.name == self.policy_name and not self.faulted
        self.use(event.name, event.options, self.memory() if keeps else None)
        self.repeats.left = 0
        self.faulted = False
        self.idle_wakes = 0
        self.state.silent_steps = 0

    def memory(self) -> object:
        """What the policy remembers beyond the live requests, as JSON-like data; None if nothing."""
        return memory_of(self.state.policy)

    def use(self, policy: str, options: dict[str, object], memory: object = None) -> None:
        """Make a policy that takes over, with what it or its like remembered."""
        state = self.state
        state.policy = self.make_policy(policy, options)
        self.policy_name, self.policy_options = policy, options
        state.fault = None
        introduce(state, memory)
