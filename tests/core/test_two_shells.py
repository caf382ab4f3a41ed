"""The law: the live engine in virtual time and the simulator decide alike, byte for byte, and any run replays."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from stepwell.core.clock import VirtualClock
from stepwell.core.engine import Engine
from stepwell.core.errors import PolicyError, UserError
from stepwell.core.registry import names
from stepwell.sim.backend import Fault
from stepwell.sim.cost.linear import Linear
from stepwell.sim.replay import replay
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.core.shells import Case, Run, fixed_case, live, simulated
from stepwell.tests.helpers.prompts import alike

POLICIES = sorted(names("policies"))
ALLOCATORS = sorted(names("allocators"))
QUICK = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(QUICK, max_examples=1500)


def small(least: int, most: int) -> st.SearchStrategy[int]:
    return st.integers(least, most)


COSTS = st.builds(
    Linear.Options,
    base_ns=st.sampled_from([1, 7, 11]),
    prefill_token_ns=small(0, 3),
    prefill_request_ns=small(0, 3),
    decode_request_ns=small(0, 3),
    kv_token_ps=st.sampled_from([0, 333, 1000, 1501]),
    swap_page_ns=small(0, 5),
)


@st.composite
def workloads(draw: st.DrawFn, longest: int) -> tuple[TraceRequest, ...]:
    now_ns = 0
    made = []
    for _ in range(draw(small(1, 10))):
        now_ns += draw(st.one_of(st.just(0), small(0, 40), small(0, 400)))
        stays_ns = draw(st.one_of(st.just(0), st.just(0), small(1, 60), small(1, 900)))
        made.append(
            TraceRequest(
                now_ns,
                draw(small(1, longest)),
                draw(small(1, longest)),
                draw(st.sampled_from(["chat", "batch"])),
                draw(st.sampled_from(["a", "b"])),
                cancel_ns=now_ns + stays_ns if stays_ns else 0,
            )
        )
    return tuple(made)


@st.composite
def faults(draw: st.DrawFn, requests: int) -> dict[int, Fault]:
    steps = draw(st.lists(small(1, 40), max_size=4, unique=True))
    blame = st.lists(small(1, requests), max_size=1).map(tuple)
    return {step: Fault(draw(blame), draw(st.booleans())) for step in steps}


@st.composite
def cases(draw: st.DrawFn, policy: str, allocator: str) -> Case:
    """Tiny pools, so that requests swap, are recomputed, and meet at one instant."""
    page_size = draw(small(1, 6))
    longest = draw(small(2, 30))
    one = -(-2 * longest // page_size)
    running_limit = draw(small(1, 6))
    requests = draw(workloads(longest))
    key_tokens = draw(st.sampled_from([1, page_size])) if allocator == "radix" else page_size
    if allocator in ("prefix", "radix"):
        requests = tuple(
            msgspec.structs.replace(
                it, keys=alike(it.prompt_tokens // key_tokens, draw(small(0, 3)), draw(small(0, 1)))
            )
            for it in requests
        )
    return Case(
        requests,
        policy,
        allocator,
        scheduler={
            "token_budget": running_limit + draw(small(0, 30)),
            "running_limit": running_limit,
            "depth": draw(small(1, 3)),
            "max_waiting": draw(st.sampled_from([2, 5, 100])),
            "max_preemptions": draw(st.sampled_from([0, 1, 2, 8])),
            "max_failures": draw(st.sampled_from([1, 3])),
        },
        memory={
            "page_size": page_size,
            "pages": draw(small(one, 3 * one)),
            "host_pages": draw(st.sampled_from([0, one, 3 * one])),
            "options": {"key_tokens": key_tokens} if allocator == "radix" else {},
        },
        max_tokens=draw(st.sampled_from([1, longest, 2 * longest, 1000])),
        faults=draw(st.one_of(st.just({}), faults(len(requests)))),
        cost=draw(COSTS),
    )


def check(case: Case, tmp_path: Path) -> Run:
    expected = simulated(case)
    found = live(case)
    assert found.journal == expected.journal
    assert found.ends == expected.ends
    assert len(found.ends) == len(case.requests)
    for jumps, honour_repeats in ((False, True), (True, False), (False, False)):
        assert simulated(case, jumps=jumps, honour_repeats=honour_repeats).journal == expected.journal
    assert live(case, honour_repeats=False).journal == expected.journal
    report = replay(expected.write(tmp_path / "run.jsonl"))
    assert report.difference is None, str(report.difference)
    for word in (b'"swap"', b'"recompute"', b'"failed"', b'"cancelled"', b'"queue_full"', b'["repeat"'):
        event(f"{word.decode()}: {word in expected.journal}")
    return expected


def law(test: Any, examples: settings) -> Any:
    drawn = st.sampled_from(ALLOCATORS)
    return examples(given(st.data(), drawn)(test))


@pytest.mark.parametrize("policy", POLICIES)
def test_both_shells_write_the_same_journal(policy: str, tmp_path: Path) -> None:
    def test(data: st.DataObject, allocator: str) -> None:
        check(data.draw(cases(policy, allocator)), tmp_path)

    law(test, QUICK)()


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_both_shells_write_the_same_journal_at_length(policy: str, tmp_path: Path) -> None:
    def test(data: st.DataObject, allocator: str) -> None:
        check(data.draw(cases(policy, allocator)), tmp_path)

    law(test, LONG)()


# ------------------------------------------------------------------------------------------------ whatever the hashes


def digest() -> str:
    """Of both shells' journals of a fixed case for every policy, and one for every allocator."""
    found = hashlib.sha256()
    for number, policy in enumerate(POLICIES):
        case = fixed_case(number % 3, policy, ALLOCATORS[number % len(ALLOCATORS)])
        found.update(simulated(case).journal)
        found.update(live(case).journal)
    return found.hexdigest()


def test_no_decision_depends_on_how_strings_hash() -> None:
    script = "from stepwell.tests.core.test_two_shells import digest; print(digest())"
    command = [sys.executable, "-c", script]
    runs = [
        subprocess.Popen(command, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True)
        for seed in ("0", "1", "4242")
    ]
    digests = [run.communicate(timeout=120)[0].strip() for run in runs]
    assert digests == [digest()] * 3


# ------------------------------------------------------------------------------------------------ policies that change


@pytest.mark.parametrize("successor", POLICIES)
@pytest.mark.parametrize("depth", [1, 3])
def test_a_policy_is_swapped_while_it_serves(successor: str, depth: int, tmp_path: Path) -> None:
    case = fixed_case(1, "swap", "paged")
    case = replace(case, scheduler={**case.scheduler, "depth": depth, "max_waiting": 100})

    async def swap(engine: Engine, clock: VirtualClock) -> None:
        for at_ns, name in ((90, successor), (300, "chat-batch"), (310, "fcfs"), (700, successor)):
            await clock.sleep_until(at_ns)
            with pytest.raises(UserError, match="unknown policy 'fcsf'"):
                engine.use_policy("fcsf", {})
            with pytest.raises(UserError, match=r"scheduler.options.patience"):
                engine.use_policy(name, {"patience": 3})
            engine.use_policy(name, {}, "the test says so")

    run = live(case, beside=swap)
    assert run.journal.count(b'["policy","') == 4
    assert all(reason in ("stop", "length", "cancelled") for reason, _ in run.ends.values())
    report = replay(run.write(tmp_path / "run.jsonl"))
    assert report.difference is None, str(report.difference)


FAULTS = {
    "unknown": "known request",
    "raises": "plan raised",
    "exits": "plan raised",
    "observe": "observe raised",
    "empty": "idle without wake",
    "past": "wake in the future",
}


def broken(how: str, depth: int) -> Case:
    """At depth 1 every fault shows; with steps in flight an empty plan is allowed."""
    case = fixed_case(1, "stepwell.tests.core.bad_policies:Breaks", "paged")
    scheduler = {**case.scheduler, "depth": depth, "max_waiting": 100}
    requests = tuple(replace_cancel(request) for request in case.requests)
    return replace(case, requests=requests, scheduler=scheduler, options={"how": how, "at": 7})


def replace_cancel(request: TraceRequest) -> TraceRequest:
    return TraceRequest(request.arrival_ns, request.prompt_tokens, request.output_tokens, request.klass)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("how", sorted(FAULTS))
def test_the_engine_outlives_its_policy(how: str, depth: int, tmp_path: Path) -> None:
    case = broken(how, depth)
    run = live(case)
    assert run.journal.count(b'["fault",') == 1
    assert f'"{FAULTS[how]}"'.encode() in run.journal
    assert b'["policy","fcfs",' in run.journal
    assert len(run.ends) == len(case.requests)
    assert {reason for reason, _ in run.ends.values()} <= {"stop", "length"}
    report = replay(run.write(tmp_path / "run.jsonl"))
    assert report.difference is None, str(report.difference)


@pytest.mark.parametrize("how", ["raises", "observe"])
def test_somebody_chooses_while_a_fault_falls_back(how: str, tmp_path: Path) -> None:
    """At every instant around the fault: before it, in the same batch of events, between it and the fallback, after."""
    case = broken(how, 1)
    faults = 0
    for at_ns in range(80, 400, 3):

        async def choose(engine: Engine, clock: VirtualClock, at_ns: int = at_ns) -> None:
            await clock.sleep_until(at_ns)
            engine.use_policy("swap", {}, "somebody")

        run = live(case, beside=choose)
        fault, chosen = run.journal.find(b'["fault",'), run.journal.find(b'["policy","swap",')
        assert run.journal.count(b'["policy","fcfs",') == (fault >= 0)
        assert fault < chosen, "whoever chose afterwards has the last word; one that was sent away cannot fail"
        faults += fault >= 0
        assert {reason for reason, _ in run.ends.values()} <= {"stop", "length"}
        report = replay(run.write(tmp_path / "run.jsonl"))
        assert report.difference is None, str(report.difference)
    assert 0 < faults < 107, "some of the times were before the fault, and some after it"


@pytest.mark.parametrize("how", sorted(FAULTS))
def test_the_simulator_stops_and_names_the_rule(how: str) -> None:
    with pytest.raises(PolicyError) as caught:
        simulated(broken(how, 1))
    error = caught.value
    assert (error.policy, error.rule) == ("stepwell.tests.core.bad_policies:Breaks", FAULTS[how])
    assert error.step >= 7
    for word in (error.policy, error.rule, str(error.step)):
        assert word in str(error)
