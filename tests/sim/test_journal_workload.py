"""A journal read as a workload is the workload that was recorded: served as it was, everything happens again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepwell.core.build import build_scheduler
from stepwell.core.config import ClassConfig, Config, MemoryConfig, SchedulerConfig
from stepwell.core.engine import Engine
from stepwell.core.errors import UserError
from stepwell.core.events import Submitted
from stepwell.core.instructions import Admitted, Finished, Rejected
from stepwell.core.journal import Turn, encode_header
from stepwell.core.page_keys import page_keys
from stepwell.core.registry import complete
from stepwell.sim.journal_read import stretches, turns
from stepwell.sim.run import open_writer, simulate
from stepwell.sim.scenario import fit_keys
from stepwell.sim.workload.journal import read_journal_workload
from stepwell.sim.workload.request import TraceRequest, Workload, shared_key_share
from stepwell.sim.workload.trace import read_trace
from stepwell.sim.workload.transform import scale_rate
from stepwell.tests.core.house import DEPTHS, FAST, ROOM, House, house
from stepwell.tests.core.journals import RotateEvery, record
from stepwell.tests.core.shells import Case, fixed_case, header_of, simulated

HOUSES = [("fcfs", "paged"), ("swap", "prefix"), ("chat-batch", "radix"), ("srpt", "contiguous")]


def without_trouble(case: Case, **changes: Any) -> Case:
    """Nobody leaves, no step fails."""
    return replace(case, requests=tuple(msgspec.structs.replace(r, cancel_ns=0) for r in case.requests), faults={})


def again(case: Case, workload: Workload) -> Case:
    return replace(case, requests=tuple(workload.requests), max_tokens=999_999)


@pytest.mark.parametrize(("policy", "allocator"), HOUSES)
@pytest.mark.parametrize("seed", range(1, 7))
def test_a_recorded_run_served_again_is_the_same_run(tmp_path: Path, seed: int, policy: str, allocator: str) -> None:
    case = without_trouble(fixed_case(seed, policy, allocator))
    case = replace(case, max_tokens=case.max_tokens // (3 if seed % 2 else 1))
    first = simulated(case)
    workload = read_journal_workload(first.write(tmp_path / "run.jsonl"))
    second = simulated(again(case, workload))
    assert second.journal.partition(b"\n")[2] == first.journal.partition(b"\n")[2]
    assert {reason for reason, _ in first.ends.values()} >= ({"length"} if seed % 2 else {"stop"})


@pytest.mark.parametrize("other", ["fcfs", "chat-batch", "swap", "mlfq"])
@pytest.mark.parametrize("seed", range(1, 9))
def test_a_client_leaves_after_as_many_tokens_under_every_policy(tmp_path: Path, seed: int, other: str) -> None:
    case = replace(fixed_case(seed, "swap", "paged"), faults={})
    first = simulated(case)
    workload = read_journal_workload(first.write(tmp_path / "run.jsonl"))
    second = simulated(replace(again(case, workload), policy=other, options={}))
    left = {id: tokens for id, (reason, tokens) in first.ends.items() if reason == "cancelled"}
    for id, tokens in left.items():
        reason, had = second.ends[id]
        if tokens:
            assert (reason, had) in {("cancelled", tokens), ("queue_full", 0)}
        else:
            assert workload.requests[id - 1].cancel_ns
            assert reason in {"cancelled", "queue_full", "stop", "length"}
    stayed = {id: end for id, end in second.ends.items() if first.ends[id][0] == "stop" and id not in left}
    assert all(end in {first.ends[id], ("queue_full", 0)} for id, end in stayed.items())


def test_some_of_those_clients_do_leave_in_the_middle(tmp_path: Path) -> None:
    ends = [end for seed in range(1, 9) for end in simulated(fixed_case(seed, "swap", "paged")).ends.values()]
    assert sum(reason == "cancelled" and tokens > 0 for reason, tokens in ends) >= 3
    assert sum(reason == "cancelled" and not tokens for reason, tokens in ends) >= 3


def recorded(it: House, path: Path, visit: Any) -> Workload:
    """Serve ``visit`` live, with a journal, and read that."""
    writer = open_writer(path, complete(it.case.config()), it.scheduler)
    it.observers.append(writer.observe)
    it.serve(visit)
    writer.close()
    return read_journal_workload(path)


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()[1:]


@DEPTHS
def test_a_live_chat_with_choices_is_served_again_to_the_byte(tmp_path: Path, depth: int) -> None:
    """Turns that find prompt and answer of those before, and choices that share a prompt."""
    memory = {**ROOM, "page_size": 4}
    it = house(depth, allocator="prefix", memory=memory, virtual=True, lengths=dict.fromkeys(range(1, 30), 11))

    async def visit(engine: Engine) -> None:
        said = [1, 2, 3, 4, 5]
        for turn in range(3):
            keys = page_keys(said, 4, b"salt")
            asked: dict[str, Any] = {"keys": keys, "salt": b"salt", "tenant": "t", "priority": turn, "program": "chat"}
            one = engine.submit(said, 9 if turn == 1 else 100, **asked)
            others = [engine.submit(said, 30, parent=one.request, **asked) for _ in range(2)]
            for stream in (one, *others):
                await stream.wait()
            said += [*one.tokens, 7, 7]
            await it.clock.sleep_until(it.clock.now_ns() + 1_000)  # a thinking client, not of the turn of a step's end

    workload = recorded(it, tmp_path / "live.jsonl", visit)
    assert [r.parent for r in workload.requests] == [0, 1, 1, 0, 4, 4, 0, 7, 7]
    assert {(r.tenant, r.program) for r in workload.requests} == {("t", "chat")}
    assert workload.key_tokens == 4
    assert all(r.answer_keys for r in workload.requests)
    case = replace(it.case, cost=FAST)
    fitted = fit_keys(workload, 4, wanted=True)
    assert fitted.requests == workload.requests
    record(again(case, fitted), tmp_path / "again.jsonl")
    assert lines(tmp_path / "again.jsonl") == lines(tmp_path / "live.jsonl")


def test_pages_of_another_size_share_what_they_would_have_shared(tmp_path: Path) -> None:
    """Keys of a live server are hashes of 64 bits, answers go on where prompts end."""
    it = house(allocator="prefix", memory={**ROOM, "page_size": 4}, virtual=True, lengths={1: 20, 2: 3})
    prompts = [list(range(18))]

    async def visit(engine: Engine) -> None:
        for _ in range(2):
            stream = engine.submit(prompts[-1], 99, keys=page_keys(prompts[-1], 4, b"s"), salt=b"s")
            await stream.wait()
            prompts.append([*prompts[-1], *stream.tokens, 5, 6])

    workload = recorded(it, tmp_path / "live.jsonl", visit)
    assert max(workload.requests[0].keys) > 1 << 40
    for size in (1, 2, 8, 16):
        first, second = fit_keys(workload, size, wanted=True).requests
        known = [*first.keys, *first.answer_keys]
        assert len(first.keys) == 16 // size
        assert len(known) == 37 // 4 * 4 // size
        assert second.keys[: len(known)] == known
        assert not set(second.keys[len(known) :]) & set(known)
    config = Config(memory=MemoryConfig(page_size=2, pages=400), scheduler=SchedulerConfig(max_context=200))
    found: list[int] = []
    simulate(
        config,
        workload=scale_rate(workload, 1e-4),  # steps are slower here, and the chat went on after its answer
        observers=[lambda now_ns, events, out: found.extend(each.cached for each in out if isinstance(each, Admitted))],
    )
    assert found == [0, 36]


def test_a_journal_is_a_trace_format_like_others(tmp_path: Path) -> None:
    case = without_trouble(fixed_case(1, "fcfs", "paged"))
    path = simulated(case).write(tmp_path / "run.jsonl")
    workload = read_trace(path)
    assert workload.requests == read_journal_workload(path).requests
    assert workload.report is not None
    assert (workload.report.format, workload.report.rows, workload.report.used) == ("journal", 14, 14)
    assert len(read_trace(path, limit=5)) == 5
    (tmp_path / "other.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="not a Stepwell journal"):
        read_journal_workload(tmp_path / "other.jsonl")
    with pytest.raises(UserError, match="no journal at"):
        read_journal_workload(tmp_path / "absent.jsonl")


def written(path: Path, *ends: Finished | Rejected | None, classes: tuple[str, ...] = ()) -> Workload:
    """A journal of a request a turn, each of which ends in the next turn as told."""
    config = complete(Config(classes=(ClassConfig(name="chat"), ClassConfig(name="batch"))))
    rows: list[Turn] = []
    for id, end in enumerate(ends, 1):
        klass = classes[id - 1] if classes else "chat"
        rows.append(Turn(id * 100, [Submitted(id, 8, 50, klass, expires_ns=id * 100 + 70)], []))
        rows.append(Turn(id * 100 + 60, [], [] if end is None else [end]))
    head = encode_header(header_of(config, build_scheduler(config)))
    path.write_bytes(head + msgspec.json.Encoder().encode_lines(rows))
    return read_journal_workload(path)


def test_lengths_that_the_journal_cannot_know_are_those_of_the_neighbours(tmp_path: Path) -> None:
    workload = written(
        tmp_path / "run.jsonl",
        Rejected(1, "queue_full", 9),
        Finished(2, "stop", 20),
        Finished(3, "length", 50),
        Finished(4, "expired", 0),
        Finished(5, "stop", 7),
        Finished(6, "error", 9),
        Finished(7, "rejected", 0),
        Finished(8, "cancelled", 12),
        Finished(9, "cancelled", 0),
        Finished(10, "stop", 0),
        None,
        classes=("chat", "chat", "batch", "batch", "chat", "chat", "chat", "chat", "batch", "chat", "batch"),
    )
    assert [r.output_tokens for r in workload.requests] == [20, 20, 51, 51, 7, 10, 7, 13, 51, 1, 51]
    assert [r.cancel_tokens for r in workload.requests] == [0] * 7 + [12, 0, 0, 0]
    assert [r.cancel_ns for r in workload.requests] == [0] * 8 + [960, 0, 0]
    assert {r.max_tokens for r in workload.requests} == {50}
    assert [r.expires_ns - r.arrival_ns for r in workload.requests] == [70] * 11
    assert any(note.startswith("6 of 11 requests did not end by themselves") for note in workload.notes)


def test_nobody_s_length_known_leaves_what_was_allowed(tmp_path: Path) -> None:
    assert [r.output_tokens for r in written(tmp_path / "run.jsonl", None, None).requests] == [50, 50]


def test_a_request_without_a_class_is_dropped_and_counted(tmp_path: Path) -> None:
    workload = written(tmp_path / "run.jsonl", Rejected(1, "unknown_class"), Finished(2, "stop", 3))
    assert workload.report is not None
    assert (workload.report.rows, workload.report.used, workload.report.dropped) == (2, 1, 1)
    assert workload.describe()[2] == "request 1: dropped: class 'chat' was not defined"


def test_what_came_before_the_journal_begins_is_left_out_and_told(tmp_path: Path) -> None:
    """Older segments were deleted: requests of the snapshot are half served, so they are no workload."""
    case = without_trouble(fixed_case(3, "swap", "paged"))
    path = tmp_path / "run.jsonl"
    record(case, path, beside=[RotateEvery(4)])
    whole = read_journal_workload(path)
    assert len(whole) == len(case.requests)
    later = sorted(tmp_path.glob("run.0*.jsonl"))[1]
    part = read_journal_workload(later)
    begun = sum(
        isinstance(event, Submitted)
        for stretch in stretches(later)
        for each in stretch.records()
        for _, events, _ in turns(each)
        for event in events
    )
    assert 0 < len(part) == begun < len(whole)
    assert [r.arrival_ns for r in part.requests] == [r.arrival_ns for r in whole.requests][-len(part) :]
    assert any("known in outline" in note for note in part.notes)


def test_a_live_journal_says_what_a_cache_that_never_forgets_would_find(tmp_path: Path) -> None:
    it = house(allocator="prefix", memory={**ROOM, "page_size": 4}, virtual=True, lengths={1: 2, 2: 2})

    async def visit(engine: Engine) -> None:
        for prompt in ([1] * 8, [1] * 8):
            await engine.submit(prompt, 9, keys=page_keys(prompt, 4, b"s"), salt=b"s").wait()

    assert shared_key_share(recorded(it, tmp_path / "live.jsonl", visit)) == 0.5


def test_cancel_tokens_beyond_the_answer_change_nothing() -> None:
    requests = (TraceRequest(0, 5, 6, cancel_tokens=6), TraceRequest(0, 5, 6, cancel_tokens=9), TraceRequest(9, 5, 6))
    memory = {"pages": 40, "page_size": 4}
    scheduler = {"token_budget": 64, "running_limit": 8}
    ends = simulated(Case(requests, memory=memory, scheduler=scheduler)).ends
    assert set(ends.values()) == {("stop", 6)}
