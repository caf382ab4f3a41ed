"""Requests that arrive when others have ended: exact times, the same journal laws, and workloads that stay right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.core.config import Config, MemoryConfig, SchedulerConfig
from stepwell.core.errors import UserError
from stepwell.core.events import Event, Submitted
from stepwell.core.instructions import Instruction
from stepwell.core.limits import SchedulerLimits
from stepwell.core.scheduler import Scheduler
from stepwell.sim.backend import Fault
from stepwell.sim.cost.linear import Linear
from stepwell.sim.loop import Observer, Simulator
from stepwell.sim.replay import replay
from stepwell.sim.run import Result, simulate
from stepwell.sim.workload.request import TraceRequest, Workload
from stepwell.sim.workload.transform import clip, limit, scale_rate, shift_to_zero
from stepwell.tests.helpers.runs import ROUND, Pool, assert_empty, build
from stepwell.tests.helpers.timeline import Story, Timeline

MS = 1_000_000


def run(
    requests: Sequence[TraceRequest], scheduler: Scheduler, *, jumps: bool = True, observers: Sequence[Observer] = ()
) -> tuple[list[Story], Simulator]:
    """The stories by place (from 0) and the simulator, after the run."""
    timeline = Timeline()
    simulator = Simulator(scheduler, Linear(ROUND), requests, observers=[timeline, *observers], jumps=jumps)
    simulator.run()
    assert_empty(scheduler)
    assert sorted(simulator.places) == list(range(1, len(requests) + 1))
    stories = {place: timeline.stories[id] for id, place in enumerate(simulator.places, 1)}
    return [stories[place] for place in range(1, len(requests) + 1)], simulator


def test_times_by_hand() -> None:
    """A step takes 10, 1 a prompt token, 1 a decoding request; the third overtakes the second in time and in id."""
    requests = [
        TraceRequest(5, 4, 1),  # 5 … 19
        TraceRequest(6, 1, 1, after=(1,), think_ns=100),  # 119 … 130
        TraceRequest(6, 3, 2, after=(1,), think_ns=0),  # 19: prefill 13, decode 11: ends at 43
        TraceRequest(7, 1, 1, after=(2, 3), think_ns=7),  # 130 + 7
        TraceRequest(500, 1, 1, after=(4,), think_ns=1),  # not before 500
    ]
    stories, simulator = run(requests, build())
    assert [(each.arrival_ns, each.end_ns) for each in stories] == [
        (5, 19),
        (119, 130),
        (19, 43),
        (137, 148),
        (500, 511),
    ]
    assert list(simulator.places) == [1, 3, 2, 4, 5]
    assert [each.prompt_tokens for each in simulator.arrived] == [4, 3, 1, 1, 1]


def test_who_was_refused_or_left_lets_others_come_too() -> None:
    requests = [
        TraceRequest(0, 5_000, 1),  # refused: the pool has 1,024 tokens
        TraceRequest(0, 5_000, 1, after=(1,), think_ns=0),  # at the same time, and refused
        TraceRequest(1, 10, 1, after=(2,), think_ns=30, cancel_ns=13),  # at 30; its client leaves 12 later, at 42
        TraceRequest(2, 1, 1, after=(3,), think_ns=8),
    ]
    stories, _ = run(requests, build())
    assert [each.arrival_ns for each in stories] == [0, 0, 30, 50]
    assert [each.reason for each in stories] == ["rejected", "rejected", "cancelled", "stop"]


def test_whom_a_failed_step_ends_lets_others_come_and_whom_it_sends_back_does_not() -> None:
    requests = [
        TraceRequest(0, 4, 3),  # in the step that fails: blamed
        TraceRequest(0, 5, 2),  # in the same: recomputed
        TraceRequest(0, 1, 1, after=(1,), think_ns=5),
        TraceRequest(0, 1, 1, after=(2,), think_ns=5),
    ]
    timeline = Timeline()
    scheduler = build()
    simulator = Simulator(
        scheduler,
        Linear(ROUND),
        requests,
        observers=[timeline],
        faults=lambda step: Fault(blamed=(1,)) if step == 2 else None,
    )
    simulator.run()
    assert_empty(scheduler)
    stories = {place: timeline.stories[id] for id, place in enumerate(simulator.places, 1)}
    assert [stories[place].reason for place in (1, 2, 3, 4)] == ["error", "stop", "stop", "stop"]
    assert stories[3].arrival_ns == stories[1].end_ns + 5 < stories[2].end_ns
    assert stories[4].arrival_ns == stories[2].end_ns + 5


@st.composite
def programs(draw: st.DrawFn) -> list[TraceRequest]:
    """A workload in which each may follow any that are before it."""
    made: list[TraceRequest] = []
    for place in range(1, draw(st.integers(2, 14)) + 1):
        after = draw(st.lists(st.integers(1, place - 1), max_size=3).map(tuple)) if place > 1 else ()
        least = max((made[each - 1].arrival_ns for each in after), default=made[-1].arrival_ns if made else 0)
        patience = draw(st.sampled_from([0, 0, 0, 25, 400]))
        arrival_ns = least + draw(st.integers(0, 60))
        made.append(
            TraceRequest(
                arrival_ns,
                draw(st.integers(1, 60)),
                draw(st.integers(1, 40)),
                draw(st.sampled_from(["chat", "batch"])),
                cancel_ns=patience and arrival_ns + patience,
                after=after,
                think_ns=draw(st.sampled_from([0, 1, 30, 500])) if after else 0,
            )
        )
    return Workload("made", made).requests


@settings(max_examples=80, deadline=None)
@given(
    requests=programs(),
    policy=st.sampled_from(["fcfs", "swap", "chat-batch", "static"]),
    pages=st.sampled_from([8, 64]),
    depth=st.sampled_from([1, 2]),
)
def test_everybody_arrives_when_told_to(requests: list[TraceRequest], policy: str, pages: int, depth: int) -> None:
    runs = []
    for jumps in (True, False):
        limits = SchedulerLimits(depth=depth)
        scheduler = build(policy, pool=Pool(pages=pages, host_pages=32), limits=limits)
        stories, simulator = run(requests, scheduler, jumps=jumps)
        for each, story in zip(requests, stories, strict=True):
            ends = [stories[place - 1].end_ns for place in each.after]
            assert story.arrival_ns == (max(max(ends) + each.think_ns, each.arrival_ns) if ends else each.arrival_ns)
            assert story.prompt == each.prompt_tokens
        arrivals = [stories[place - 1].arrival_ns for place in simulator.places]
        assert arrivals == sorted(arrivals)
        runs.append(([story.outcome() for story in stories], list(simulator.places)))
    assert runs[0] == runs[1]


class Inside:
    """Requests in the house: the most at any time, and the integral of their number."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.most = self.area = 0
        self._scheduler = scheduler
        self._now = self._last_ns = 0

    def __call__(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        self.area += self._now * (now_ns - self._last_ns)
        self._last_ns, self._now = now_ns, len(self._scheduler.state.requests)
        arrived = sum(isinstance(each, Submitted) for each in events)
        self.most = max(self.most, self._now, arrived)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), users=st.integers(1, 6), each=st.integers(1, 8))
def test_littles_law_and_never_more_requests_than_users(data: st.DataObject, users: int, each: int) -> None:
    """Exact on the whole run: a user's time is waiting to start, responses, thinking, and being done."""
    starts = data.draw(st.lists(st.integers(0, 200), min_size=users, max_size=users))
    requests: list[TraceRequest] = []
    for user, start in enumerate(starts):
        for turn in range(each):
            think = data.draw(st.integers(0, 90)) if turn else 0
            prompt, output = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 20))
            after = (len(requests),) if turn else ()
            at = requests[-1].arrival_ns + think if turn else start
            requests.append(TraceRequest(at, prompt, output, program=f"user-{user}", after=after, think_ns=think))
    workload = Workload("users", requests)
    scheduler = build("chat-batch")
    inside = Inside(scheduler)
    stories, _ = run(workload.requests, scheduler, observers=[inside])
    assert inside.most <= users
    responses = sum(story.end_ns - story.arrival_ns for story in stories)
    assert inside.area == responses
    thinks = sum(each.think_ns for each in requests)
    left: dict[str, int] = {}
    for request, story in zip(workload.requests, stories, strict=True):
        left[request.program] = max(left.get(request.program, 0), story.end_ns)
    end_ns = max(left.values())
    assert users * end_ns == sum(starts) + responses + thinks + sum(end_ns - each for each in left.values())


# ------------------------------------------------------------------------------------------------ journals, oracles


def conversations(count: int = 40) -> Workload:
    """Three requests in a row each, of alternating classes."""
    made: list[TraceRequest] = []
    for index in range(count):
        for turn in range(3):
            at = index * 40 * MS + turn * 300 * MS
            prompt, output = 40 + 97 * (index * 3 + turn) % 300, 5 + 31 * (index + turn) % 90
            after = (len(made),) if turn else ()
            klass = "batch" if index % 3 == 2 else "chat"
            made.append(
                TraceRequest(at, prompt, output, klass, program=f"p{index}", after=after, think_ns=turn * 90 * MS)
            )
    return Workload("conversations", made)


def configured(policy: str, options: dict[str, object], *, tight: bool = True) -> Config:
    scheduler = SchedulerConfig(policy=policy, options=options)
    return Config(scheduler=scheduler, memory=MemoryConfig(pages=60 if tight else 3000, host_pages=200))


ORACLE: dict[str, object] = {"predictor": "oracle"}


@pytest.mark.parametrize(
    ("policy", "options"), [("fcfs", {}), ("swap", {}), ("vtc", {}), ("srpt", ORACLE), ("sjf", ORACLE)]
)
def test_a_journal_of_it_replays(policy: str, options: dict[str, object], tmp_path: Path) -> None:
    config = configured(policy, options)
    path = tmp_path / "run.jsonl"
    result = simulate(config, workload=conversations(), journal=path)
    assert result.metrics.requests == simulate(config, workload=conversations()).metrics.requests
    assert replay(path).difference is None


def lengths_known(result: Result) -> list[tuple[int, int]]:
    return [(id, result.workload.requests[place - 1].output_tokens) for id, place in enumerate(result.places, 1)]


def test_an_oracle_is_told_by_the_ids_that_the_run_gives() -> None:
    result = simulate(configured("srpt", ORACLE), workload=conversations())
    assert list(result.places) != sorted(result.places), "the case is too easy"
    for id, tokens in lengths_known(result):
        assert result.metrics.requests[id].tokens == tokens
    other = simulate(configured("fcfs", {}), workload=conversations())
    assert sorted(lengths_known(other)) != sorted(lengths_known(result))


@pytest.mark.parametrize("allocator", ["prefix", "radix"])
@pytest.mark.parametrize("key_tokens", [16, 8, 32, 48])
def test_what_follows_finds_prompt_and_answer(allocator: str, key_tokens: int, tmp_path: Path) -> None:
    """150 prompt tokens, 75 of an answer whose last one is not computed, then a prompt that begins with both."""
    blocks = -(-300 // key_tokens)
    first = TraceRequest(
        0, 150, 75, keys=[*range(1, 150 // key_tokens + 1), 900][: -(-150 // key_tokens)],
        answer_keys=tuple(range(150 // key_tokens + 1, 225 // key_tokens + 1)),
    )  # fmt: skip
    second = TraceRequest(1, 300, 5, keys=list(range(1, blocks + 1)), after=(1,), think_ns=5 * MS)
    config = Config(memory=MemoryConfig(allocator=allocator, pages=100))
    workload = Workload("chat", [first, second], key_tokens=key_tokens)
    path = tmp_path / "run.jsonl"
    result = simulate(config, workload=workload, journal=path)
    known = 225 // key_tokens * key_tokens  # in full keys, of which full pages of computed tokens count
    assert result.metrics.cached_tokens == min(known, 224) // 16 * 16
    assert replay(path).difference is None
    silent = [msgspec.structs.replace(first, answer_keys=()), second]
    without = simulate(config, workload=Workload("chat", silent, key_tokens=key_tokens))
    assert without.metrics.cached_tokens == 150 // max(16, key_tokens) * max(16, key_tokens) // 16 * 16


# ------------------------------------------------------------------------------------------------ the workload itself


def test_names_follow_their_requests_when_the_order_changes() -> None:
    given_out_of_order = [TraceRequest(50, 1, 1), TraceRequest(60, 2, 1, after=(1,)), TraceRequest(10, 3, 1)]
    made = Workload("made", given_out_of_order)
    assert [(each.prompt_tokens, each.after) for each in made.requests] == [(3, ()), (1, ()), (2, (2,))]
    assert [each.after for each in given_out_of_order] == [(), (1,), ()]
    assert (made.followers, made.profile().requests) == (1, 2)
    assert made.describe()[0].startswith("made: 3 requests, 1 when others have ended and 2 over 0.0 s")


@pytest.mark.parametrize("after", [(0,), (-1,), (2,), (3,), (4,), (1, 2), (1, 9)])
def test_a_name_that_is_not_before_it_is_refused(after: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"^after: request 2 arrives after .*, which must be before it"):
        Workload("made", [TraceRequest(1, 1, 1), TraceRequest(2, 1, 1, after=after), TraceRequest(3, 1, 1)])


def test_a_part_waits_for_nobody_who_is_left_out() -> None:
    chain = [TraceRequest(at, at, 1, after=(at - 1,) if at > 1 else (), think_ns=1) for at in range(1, 7)]
    kept = limit(Workload("made", chain), 3, skip=2)
    assert [(each.arrival_ns, each.after) for each in kept.requests] == [(3, ()), (4, (1,)), (5, (2,))]
    both = [TraceRequest(1, 1, 1), TraceRequest(2, 1, 1), TraceRequest(3, 1, 1, after=(1, 2))]
    assert [each.after for each in limit(Workload("made", both), 2, skip=1).requests] == [(), (1,)]


def test_another_rate_moves_those_who_follow_nobody_and_keeps_all_distances() -> None:
    requests = [
        TraceRequest(100, 1, 1),
        TraceRequest(130, 2, 1, after=(1,), think_ns=30),
        TraceRequest(140, 4, 1),
        TraceRequest(150, 3, 1, after=(1, 2), think_ns=20, cancel_ns=170),
    ]
    workload = Workload("made", requests)
    faster = {each.prompt_tokens: each for each in scale_rate(workload, 10.0).requests}
    assert [(p, each.arrival_ns) for p, each in faster.items()] == [(1, 10), (4, 14), (2, 40), (3, 60)]
    assert (faster[3].after, faster[3].think_ns, faster[3].cancel_ns) == ((1, 3), 20, 80)
    assert [each.arrival_ns for each in shift_to_zero(workload).requests] == [0, 30, 40, 50]


def test_the_digest_tells_who_follows_whom() -> None:
    base = [TraceRequest(1, 1, 1), TraceRequest(2, 1, 1, after=(1,)), TraceRequest(3, 1, 1)]
    digests = {Workload("made", base).digest()}
    for changes in ({"after": (2,)}, {"think_ns": 1}, {"answer_keys": (1,)}, {"program": "p"}):
        digests.add(Workload("made", [*base[:2], msgspec.structs.replace(base[2], **changes)]).digest())
    assert len(digests) == 5


def test_a_clipped_prompt_loses_the_keys_of_what_came_after_it() -> None:
    request = TraceRequest(1, 40, 30, keys=[1, 2, 3], answer_keys=(4, 5))
    workload = Workload("made", [request], key_tokens=16)
    assert clip(workload, max_output=10).requests[0].answer_keys == (4, 5)
    cut = clip(workload, max_prompt=20).requests[0]
    assert (cut.keys, cut.answer_keys) == ([1, 2], ())
