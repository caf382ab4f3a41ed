"""The conformance suite of scheduling policies: is it lawful, repeatable and honest, and does it keep its promises?

    from stepwell.core.testing import check_policy

    def test_mine():
        check_policy(lambda: Mine(Mine.Options()))

Generated workloads are played through the scheduler, several times each.  What is asked of every policy:

- **lawful**: no plan breaks a rule of the plan (budgets among them), nobody waits for ever, refused items are no end;
- **harmless**: neither ``plan`` nor ``observe`` changes anything but the policy itself;
- **blind to the future**: it reads nothing of a request or of the view that the protocols do not list;
- **repeatable**: two instances decide alike, and one rebuilt in the middle (from the
  live requests, and from what it dumped if it is a ``Remembering`` one) decides like one that was not;
- **honest about repeat**: a plan that repeats decides what planning every step would.

And what its ``promises`` add, as understood here:

- ``work_conserving``: a plan that takes in nobody, sends nobody away and rejects nobody must have a reason: no seat, no
  budget, or somebody in line whom the free pages do not hold (less what the step itself needs, and less one page in a
  hundred, at least one, beside running requests).  So whoever is at the head of a line, a fitting one gets in, and a
  strict order may still block.  And a plan does some work if any running request could compute.
- ``bounded_wait``: while others keep arriving without end, a request is admitted within ``wait_ns``.
- ``respects_rank``: nobody is taken in while one of better rank stays in line that could be taken in (steps in flight
  do not name it); whoever gives way is of worse rank than the waiting request it gives way to (every one taken in, if
  the plan names none), and of no better rank than a running one.  The rank is that of the class, unless the policy has
  a method ``rank(request, now_ns)``, whose value (or the first item of it) then counts.
- ``keeps_work``: nobody is sent away to be computed again whose pages the host tier has room for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import FlakyFailure

from stepwell.core.events import Submitted, Timer
from stepwell.core.instructions import Admitted
from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Remembering, RequestView, SchedulerPolicy, SchedulerView
from stepwell.core.request import Request
from stepwell.core.scheduler import Scheduler
from stepwell.core.testing_play import REBUILD, ConformanceError, Play, Scenario, Turn, scenarios
from stepwell.core.types import NS_PER_MS, NS_PER_S, RequestId, RequestState

MakePolicy = Callable[[], SchedulerPolicy]

_REQUEST = frozenset(name for name in vars(RequestView) if not name.startswith("_"))
_FIELDS = [name for name in dir(Request) if not name.startswith("_")]
_VIEW = frozenset(name for name in vars(SchedulerView) if not name.startswith("_"))


def check_policy(
    make_policy: MakePolicy,
    *,
    allocators: Sequence[str] = ("paged", "contiguous", "prefix"),
    examples: int = 40,
    wait_ns: int = 120 * NS_PER_S,
    shrink: bool = True,
    check: Callable[[Scenario, MakePolicy], None] | None = None,
) -> None:
    """Raise ``ConformanceError`` unless the policies that ``make_policy`` makes keep the contract; see the module.

    ``allocators`` are registered names; ``wait_ns`` is the bound that ``bounded_wait`` is held to, at steps of 100 ms.
    ``shrink``: take the time to find a small workload that shows the fault (hypothesis prints it).  ``check`` is called
    for each workload, ``check_scenario`` unless said otherwise.
    """
    quiet = settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )

    @quiet
    @given(scenarios(allocators))
    def play(scenario: Scenario) -> None:
        (check or check_scenario)(scenario, make_policy)

    try:
        play()
    except FlakyFailure as error:  # it was seen once, which is enough
        raise next((each for each in error.exceptions if isinstance(each, ConformanceError)), error) from None
    if make_policy().promises.bounded_wait:
        for allocator in allocators:
            check_bounded_wait(make_policy, allocator, wait_ns)


def check_scenario(scenario: Scenario, make_policy: MakePolicy) -> None:
    """One workload, played in every way."""

    def plain(scheduler: Scheduler) -> SchedulerPolicy:
        return make_policy()

    first = _heard(scenario, Watched, make_policy)
    second = _heard(scenario, Sealed, make_policy)
    _same(first, second, "is not deterministic: two instances decide differently")
    _same(
        Play(scenario, plain, honour_repeats=False).run(),
        first,
        "is not honest about repeat: planning every step decides differently",
    )
    what = "of the live requests and of what it dumps" if _remembers(make_policy()) else "of the live requests"
    _same(
        Play(scenario, plain, rebuilds=Timer()).run(),
        Play(scenario, plain, rebuilds=REBUILD).run(),
        f"is not a function {what}: rebuilt from them it decides differently",
    )
    try:
        Play(scenario, plain, stingy=True).run()
    except ConformanceError as error:
        raise ConformanceError(f"does not recover from refused items: {error}") from error


def _remembers(policy: SchedulerPolicy) -> bool:
    """Whether it has a memory; raises if the memory cannot be written into a snapshot."""
    if not isinstance(policy, Remembering):
        return False
    try:
        msgspec.json.encode(policy.dump())
    except Exception as error:
        raise ConformanceError(f"its dump is not JSON-like data: {error}") from error
    return True


def _heard(scenario: Scenario, around: type[Watched] | type[Sealed], make_policy: MakePolicy) -> list[Turn]:
    """Play with something around the policy that complains.  Its complaint is the cause, a fault only what follows."""
    complaints: list[str] = []
    try:
        turns = Play(scenario, lambda scheduler: around(make_policy(), scheduler, complaints)).run()
    except ConformanceError:
        if not complaints:
            raise
    if complaints:
        raise ConformanceError(complaints[0])
    return turns


def _same(expected: Sequence[Turn], found: Sequence[Turn], what: str) -> None:
    if expected == found:
        return
    for one, other in zip(expected, found, strict=False):
        if one != other:
            raise ConformanceError(f"{what}\n  at {one[0]} ns: {one[1]}\n  at {other[0]} ns: {other[1]}")
    raise ConformanceError(f"{what}: {len(expected)} turns and {len(found)}")


# ------------------------------------------------------------------------------------------------ bounded wait


def check_bounded_wait(make_policy: MakePolicy, allocator: str, wait_ns: int) -> None:
    """One request, small or as large as the pool, of either class, against an endless stream of newcomers."""
    for klass in ("chat", "batch"):
        for prompt in (1, 20):
            for rivals in (("chat",), ("batch",), ("chat", "batch")):
                _outlast(make_policy, allocator, wait_ns, klass, prompt, rivals)


def _outlast(
    make_policy: MakePolicy, allocator: str, wait_ns: int, klass: str, prompt: int, rivals: Sequence[str]
) -> None:
    scenario = Scenario((), allocator=allocator, pages=12, running_limit=3, tick_ns=100 * NS_PER_MS)
    play = Play(scenario, lambda scheduler: make_policy())
    begun: list[RequestId] = []
    patient = arrived = 0
    for tick in range(6 + wait_ns // scenario.tick_ns):
        script: list[Submitted] = []
        if tick == 5:
            patient = arrived = arrived + 1
            script.append(Submitted(patient, prompt, 4, klass, "tenant"))
        rivalry = sum(id > patient for id in play.scheduler.state.waiting)
        for _ in range(rivalry, 4):
            arrived += 1
            play.device.output[arrived] = 2 + arrived % 4
            script.append(Submitted(arrived, 1 + arrived % 5, 8, rivals[arrived % len(rivals)], "tenant"))
        out = play.tick(tick, script)
        begun += [it.request for it in out if isinstance(it, Admitted)]
        if patient and patient in begun:
            return
    raise ConformanceError(
        f"starves: a {klass} request of {prompt} prompt tokens has waited {wait_ns / NS_PER_S:g} s while "
        f"{sum(id > patient for id in begun)} that came later were admitted (promised: bounded_wait)"
    )


# ------------------------------------------------------------------------------------------------ watching


class Watched:
    """The policy itself, on the real view: does it leave the state alone, and keep its promises?"""

    def __init__(self, policy: SchedulerPolicy, scheduler: Scheduler, complaints: list[str]) -> None:
        self.policy = policy
        self.promises = policy.promises
        self._scheduler = scheduler
        self._complaints = complaints

    def observe(self, event: PolicyEvent) -> None:
        before = _digest(self._scheduler)
        self.policy.observe(event)
        if _digest(self._scheduler) != before:
            self._complaints.append(f"observe({event.kind!r}) changed the scheduler's state at {event.now_ns} ns")

    def plan(self, view: SchedulerView) -> StepPlan:
        before = _digest(self._scheduler)
        plan = self.policy.plan(view)
        if _digest(self._scheduler) != before:
            self._complaints.append(f"plan() changed the scheduler's state in step {view.step}")
        if not isinstance(plan, StepPlan):
            return plan  # type: ignore[unreachable]  # for the scheduler to say
        self._complaints += [f"step {view.step}: {broken}" for broken in self._broken(view, plan)]
        return plan

    def _broken(self, view: SchedulerView, plan: StepPlan) -> Iterator[str]:
        if self.promises.work_conserving:
            yield from _idles(view, plan)
        if self.promises.respects_rank:
            yield from _passes_rank(view, plan, self._rank)
        if self.promises.keeps_work:
            yield from _drops_work(view, plan)

    def _rank(self, request: RequestView, now_ns: int) -> Any:
        stated = getattr(self.policy, "rank", None)
        rank: Any = request.rank if stated is None else stated(request, now_ns)
        return rank[0] if isinstance(rank, tuple) else rank


def _digest(scheduler: Scheduler) -> object:
    """All that a policy could reach and must not change."""
    state = scheduler.state
    tables = [state.requests, state.waiting, state.swapped, state.loose, state.draining, state.group.members]
    numbers = [
        [value for name in _FIELDS if isinstance(value := getattr(request, name), (int, str, RequestState))]
        for request in state.requests.values()
    ]
    flights = [(step.id, step.tick, list(step.sampled)) for step in state.inflight]
    return [list(table) for table in tables], numbers, flights, state.group.launched, state.allocator.dump()


def _line(view: SchedulerView) -> list[RequestView]:
    return [*view.waiting.values(), *view.swapped.values()]


def _idles(view: SchedulerView, plan: StepPlan) -> Iterator[str]:
    """Why the plan does not conserve work."""
    if plan.admit or plan.resume or plan.preempt or plan.reject:
        return
    decoding = len(view.decoding) - len(plan.hold) if plan.decode else 0
    loose = [request for request in view.loose.values() if request.state is not RequestState.SWAPPING_IN]
    if not decoding and not plan.slices:
        able = [request.id for request in loose if view.slice_pages(request, 1) <= view.free_pages]
        able += list(view.decoding) if len(view.growing()) <= view.free_pages else []
        if able:
            yield f"does no work although request {able[0]} runs and could compute (promised: work_conserving)"
    budget = view.token_budget - decoding - sum(tokens for _, tokens in plan.slices)
    need = view.growth() if plan.decode else 0
    need += sum(view.slice_pages(view.loose[id], tokens) for id, tokens in plan.slices)
    headroom = need + (view.total_pages // 100 + 1 if view.running else 0)
    line = _line(view)
    if view.running < view.running_limit and all(
        request.ready
        and (budget > 0 or request.state is RequestState.SWAPPED)
        and not view.pages_missing(request, headroom)
        for request in line
    ):
        for request in line[:1]:
            yield (
                f"takes in nobody although seats, budget and pages are free for each of the {len(line)} in line, "
                f"request {request.id} for one (promised: work_conserving)"
            )


def _passes_rank(view: SchedulerView, plan: StepPlan, rank: Callable[[RequestView, int], Any]) -> Iterator[str]:
    """Where the plan puts somebody before one of better rank."""
    now_ns = view.now_ns
    line = {request.id: request for request in _line(view)}
    running = {**view.decoding, **view.loose}
    taken = [*(id for id, _ in plan.admit), *plan.resume]
    gone = {*taken, *(id for id, _ in plan.reject)}
    for id in taken:
        mine = rank(line[id], now_ns)
        for other in line.values():
            if other.id not in gone and other.ready and rank(other, now_ns) < mine:
                yield f"takes in request {id} past request {other.id} of better rank (promised: respects_rank)"
    for item in plan.preempt:
        theirs = rank(running[item.request], now_ns)
        for id in [item.beneficiary] if item.beneficiary else taken:
            if (id in line and rank(line[id], now_ns) >= theirs) or (
                id in running and rank(running[id], now_ns) > theirs
            ):
                yield f"sends request {item.request} away for request {id} of no better rank (promised: respects_rank)"


def _drops_work(view: SchedulerView, plan: StepPlan) -> Iterator[str]:
    """Who is sent away to be computed again although the host tier, as the plan leaves it, would hold it."""
    running = {**view.decoding, **view.loose}
    room = view.free_host_pages
    for item in plan.preempt:
        pages = -(-running[item.request].computed // view.page_size)
        if item.mode == "swap":
            room -= pages
        elif 0 < pages <= room:
            yield f"drops the work of request {item.request}, {pages} pages of {room} free (promised: keeps_work)"


# ------------------------------------------------------------------------------------------------ sealing


class Sealed:
    """The policy behind glass: it can read what the protocols list, and nothing else."""

    def __init__(self, policy: SchedulerPolicy, scheduler: Scheduler, complaints: list[str]) -> None:
        self.policy = policy
        self.promises = policy.promises
        self._peeks = complaints
        self._known: dict[RequestId, RequestView] = {}

    def observe(self, event: PolicyEvent) -> None:
        self.policy.observe(PolicyEvent(event.kind, self.seal(event.request), event.now_ns))

    def plan(self, view: SchedulerView) -> StepPlan:
        glass: Any = _Glass(view, "view", _VIEW, self._peeks, self.show)
        return self.policy.plan(glass)

    def seal(self, request: RequestView) -> RequestView:
        known = self._known.get(request.id)
        if known is None:
            glass: Any = _Glass(request, "request", _REQUEST, self._peeks, lambda value: value)
            known = self._known[request.id] = glass
        return known

    def show(self, value: Any) -> Any:
        """What the view answers, with the requests in it sealed."""
        if isinstance(value, Mapping):
            return {id: self.seal(request) for id, request in value.items()}
        if callable(value):
            return lambda *args, **named: self.show(value(*args, **named))
        if isinstance(value, (list, tuple)):
            return [self.seal(request) for request in value]
        return value


class _Glass:
    __slots__ = ("_allowed", "_it", "_peeks", "_show", "_what")

    def __init__(
        self, it: object, what: str, allowed: frozenset[str], peeks: list[str], show: Callable[[Any], Any]
    ) -> None:
        for name, value in (("_it", it), ("_what", what), ("_allowed", allowed), ("_peeks", peeks), ("_show", show)):
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in self._allowed:
            self._peeks.append(
                f"reads {self._what}.{name}, which a policy must not know: the protocol does not list it"
            )
            raise AttributeError(f"a policy cannot see {self._what}.{name}")
        return self._show(getattr(self._it, name))

    def __setattr__(self, name: str, value: object) -> None:
        self._peeks.append(f"sets {self._what}.{name}: what a policy sees is read-only")
        raise AttributeError(f"a policy cannot change {self._what}.{name}")
