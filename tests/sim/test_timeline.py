"""The timeline of a journal says what its requests and steps went through, in a form that viewers open.

Perfetto's own reader is a program that its package fetches from the network, so files are read back by a strict reader
of the format's rules (``tests.helpers.chrome_trace``), and held to what a naive observer saw.
"""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.core.errors import UserError
from stepwell.core.registry import names
from stepwell.core.types import FOREVER
from stepwell.sim.journal_read import stretches, turns
from stepwell.sim.phases import DECODE, PHASES, PREEMPTED, PREFILL, QUEUED, SWAPPED_OUT
from stepwell.sim.timeline import DECISIONS, STEPS
from stepwell.sim.timeline_file import write_timeline
from stepwell.tests.cli.hand import call, scenario
from stepwell.tests.core.journals import RotateEvery, record
from stepwell.tests.core.shells import fixed_case, live, simulated
from stepwell.tests.helpers.chrome_trace import Slice, Trace, read
from stepwell.tests.helpers.timeline import Timeline

POLICIES = sorted(names("policies"))
ALLOCATORS = sorted(names("allocators"))


def naive(journal: Path) -> tuple[Timeline, int]:
    """What a naive observer sees in the journal, and when that ends."""
    seen, end_ns = Timeline(), 0
    for part in stretches(journal):
        for each in part.records():
            for now_ns, events, instructions in turns(each):
                seen(now_ns, events, instructions)
                end_ns = now_ns
    return seen, end_ns


def whole(journal: Path, *, from_ns: int = 0, to_ns: int = FOREVER) -> Trace:
    out = journal.with_suffix(".trace.json")
    write_timeline(journal, out, from_ns=from_ns, to_ns=to_ns)
    return read(out)


def told(trace: Trace, id: int) -> Slice:
    (span,) = trace.requests[id]
    return span


def check(trace: Trace, seen: Timeline) -> None:
    """Requests, steps and counters against the naive observer."""
    assert sorted(trace.requests) == sorted(seen.stories)
    for id, story in seen.stories.items():
        span = told(trace, id)
        assert (span.name, span.start, span.end) == (f"request {id}", story.arrival_ns, story.end_ns)
        assert span.args["reason"] == story.reason
        phases = span.inside
        assert {each.name for each in phases} <= set(PHASES)
        assert [span.start, *(each.end for each in phases)] == [*(each.start for each in phases), span.end]
        admitted = [each.start for each in phases if each.name == PREFILL]
        resumed = [each.end for each in phases if each.name == SWAPPED_OUT]
        assert [at for at in admitted if at not in story.resumptions] == [
            at for at in story.admissions if at not in story.resumptions
        ]
        assert set(story.resumptions) <= set(resumed)
        first = [each.start for each in phases if each.name == DECODE]
        if story.token_ns and story.first_ns < story.end_ns:
            away = [each for each in phases if each.name in (SWAPPED_OUT, PREEMPTED)]
            away = [each for each in away if each.start < story.first_ns <= each.end]
            if away:  # sent away while its step was in flight
                assert all(at >= away[0].end for at in first)
            else:
                assert first[0] == story.first_ns
        sent = [each.start for each in phases if each.name in (SWAPPED_OUT, PREEMPTED)]
        assert sent == [at for at, _ in story.preemptions]
    computed = sum(each.args["prefill_tokens"] + each.args["decode_requests"] for each in trace.tracks.get(STEPS, []))
    assert computed <= seen.computed  # steps behind a failed one are counted as computed there
    if not any(each.name == "failed" for each in trace.tracks.get(STEPS, [])):
        assert computed == seen.computed
        assert len(trace.tracks.get(STEPS, [])) == seen.launches
    for name in ("requests waiting", "requests running", "requests swapped out", "KV pages in use"):
        assert trace.counters[name][-1][1] == 0, name


# ------------------------------------------------------------------------------------------------ laws


@pytest.mark.parametrize("policy", POLICIES)
def test_a_crowded_house_is_told_truly(policy: str, tmp_path: Path) -> None:
    """Swaps, recomputes, cancels, failed steps, one to three steps in flight."""
    for seed in range(5):
        journal = simulated(fixed_case(seed, policy, ALLOCATORS[seed % len(ALLOCATORS)])).write(tmp_path / "run.jsonl")
        check(whole(journal), naive(journal)[0])


@pytest.mark.parametrize("seed", range(4))
def test_both_shells_give_the_same_timeline(seed: int, tmp_path: Path) -> None:
    case = fixed_case(seed, "swap", "prefix")
    files = []
    for name, shell in (("sim", simulated), ("live", live)):
        journal = shell(case).write(tmp_path / f"{name}.jsonl")
        write_timeline(journal, tmp_path / f"{name}.json")
        files.append((tmp_path / f"{name}.json").read_bytes())
    assert files[0] == files[1]


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 400), bounds=st.tuples(st.integers(0, 1500), st.integers(1, 900)))
def test_a_window_is_cut_out_of_the_whole(seed: int, bounds: tuple[int, int], tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("window")
    journal = simulated(fixed_case(seed, "swap", "paged")).write(folder / "run.jsonl")
    from_ns, to_ns = bounds[0], sum(bounds)
    full = whole(journal)
    if from_ns > naive(journal)[1]:
        with pytest.raises(UserError, match="the journal tells of"):
            whole(journal, from_ns=from_ns, to_ns=to_ns)
        assert not list(folder.glob("*.part"))
        return
    part = whole(journal, from_ns=from_ns, to_ns=to_ns)
    wanted = {}
    for id in full.requests:
        span = told(full, id)
        if span.end >= from_ns and span.start <= to_ns and (span.end > from_ns or span.start == from_ns):
            wanted[id] = (max(span.start, from_ns), min(span.end, to_ns))
    got = {id: (told(part, id).start, told(part, id).end) for id in part.requests}
    # at the very moment of the window's beginning a request may be told to end
    assert {id: at for id, at in wanted.items() if at[1] > from_ns} == {
        id: at for id, at in got.items() if at[1] > from_ns
    }
    steps = [each for each in full.tracks.get(STEPS, []) if each.end > from_ns and each.start < to_ns]
    done = [each for each in steps if each.end <= to_ns]
    assert part.tracks.get(STEPS, []) == done


@pytest.mark.parametrize("policy", ["swap", "fcfs", "chat-batch", "mlfq"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_left_of_a_rotated_journal_says_the_same_of_its_time(policy: str, seed: int, tmp_path: Path) -> None:
    """Phases, contexts and pages go on from the snapshot."""
    case = fixed_case(seed, policy, ALLOCATORS[seed % len(ALLOCATORS)])
    journal = tmp_path / "run.jsonl"
    record(case, journal, beside=[RotateEvery(9)])
    full = whole(journal)
    later = tmp_path / "run.00002.jsonl"
    begins_ns = stretches(later)[0].snapshot().now_ns  # type: ignore[union-attr]
    rest = whole(later)
    assert rest.counters["KV pages in use"][-1][1] == 0
    for id, spans in rest.requests.items():
        (late,), before = spans, told(full, id)
        assert late.end == before.end
        cut = [(each.name, max(each.start, begins_ns), each.end) for each in before.inside if each.end > begins_ns]
        assert [(each.name, each.start, each.end) for each in late.inside if each.end > begins_ns] == cut
    known = {each.args["step"]: each for each in full.tracks[STEPS]}
    assert rest.tracks[STEPS]
    for step in rest.tracks[STEPS]:
        assert step == known[step.args["step"]]
    for name in ("requests waiting", "requests running", "requests swapped out", "KV pages in use"):
        assert _at(full, name, begins_ns + 1) == _at(rest, name, begins_ns + 1), name


def _at(trace: Trace, name: str, at: int) -> int:
    return [value for when, value in trace.counters[name] if when <= at][-1]


# ------------------------------------------------------------------------------------------------ by hand


def test_two_requests_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run worked out in ``tests.cli.hand``."""
    journal = tmp_path / "run.jsonl"
    assert call(capsys, "sim", scenario(tmp_path), "--journal", journal)[0] == 0
    status, out, _ = call(capsys, "trace", journal)
    assert status == 0
    trace = read(tmp_path / "run.trace.json.gz")
    assert "open it in ui.perfetto.dev" in out
    first, second = told(trace, 1), told(trace, 2)
    assert [(each.name, each.start, each.end) for each in first.inside] == [
        (QUEUED, 0, 0),
        (PREFILL, 0, 18),
        (DECODE, 18, 246),
    ]
    assert [(each.name, each.start, each.end) for each in second.inside] == [
        (QUEUED, 1, 18),
        (PREFILL, 18, 37),
        (DECODE, 37, 169),
        (PREEMPTED, 169, 246),
        (PREFILL, 246, 276),
        (DECODE, 276, 353),
    ]
    assert trace.marks[2] == [(1, "chat"), (169, "preempted by recompute")]
    steps = trace.tracks[STEPS]
    assert [(each.start, each.end) for each in steps[:3]] == [(0, 18), (18, 37), (37, 49)]
    assert [each.name for each in steps[:3]] == ["prefill", "prefill + decode", "decode"]
    # the third reads what request 1 computed (8 of its prompt, 1 since) and request 2's prompt
    assert [each.args["kv_tokens"] for each in steps[:3]] == [0, 8, 17]
    assert len(steps) == 28
    assert [(at, name) for at, name, _ in trace.instants if name == "preempted"] == [(169, "preempted")]
    assert max(value for _, value in trace.counters["KV pages in use"]) == 10
    assert trace.counters["tokens in the step"][:3] == [(0, 8), (18, 9), (37, 2)]
    assert trace.names == {
        "process_name": "stepwell fcfs (simulated)",
        f"thread_name {STEPS}": "steps",
        f"thread_sort_index {STEPS}": STEPS,
        f"thread_name {DECISIONS}": "decisions",
        f"thread_sort_index {DECISIONS}": DECISIONS,
    }


def test_the_same_journal_gives_the_same_bytes(tmp_path: Path) -> None:
    journal = simulated(fixed_case(3, "swap", "paged")).write(tmp_path / "run.jsonl")
    for name in ("a.json.gz", "b.json.gz", "c.json"):
        write_timeline(journal, tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == (tmp_path / "c.json").read_bytes()


def test_a_nanosecond_is_kept_however_late(tmp_path: Path) -> None:
    """Eleven days and more: a double would round there."""
    case = fixed_case(1, "fcfs", "paged")
    late_ns = 10**16 + 7
    moved = tuple(
        each.__class__(
            **{field: getattr(each, field) for field in each.__struct_fields__}
            | {
                "arrival_ns": each.arrival_ns + late_ns,
                "cancel_ns": each.cancel_ns + late_ns if each.cancel_ns else 0,
            }
        )
        for each in case.requests
    )
    journal = simulated(case.__class__(**{**case.__dict__, "requests": moved})).write(tmp_path / "run.jsonl")
    check(whole(journal), naive(journal)[0])


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("window", "words"),
    [
        ((10**9, FOREVER), "the journal tells of 0 to "),
        ((5, 5), "ends before it begins"),
    ],
)
def test_a_window_that_nothing_is_told_of(window: tuple[int, int], words: str, tmp_path: Path) -> None:
    journal = simulated(fixed_case(1, "fcfs", "paged")).write(tmp_path / "run.jsonl")
    with pytest.raises(UserError, match=words):
        write_timeline(journal, tmp_path / "out.json", from_ns=window[0], to_ns=window[1])
    assert [each.name for each in tmp_path.iterdir()] == ["run.jsonl"]


def test_the_journal_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = simulated(fixed_case(1, "fcfs", "paged")).write(tmp_path / "run.jsonl")
    before = journal.read_bytes()
    status, _, err = call(capsys, "trace", journal, "--out", journal)
    assert status == 2
    assert "is the journal itself" in err
    assert journal.read_bytes() == before
    status, _, err = call(capsys, "trace", journal, "--out", tmp_path / "nowhere" / "out.json")
    assert status == 2
    assert "cannot write" in err
    status, _, err = call(capsys, "trace", journal, "--to", "soon")
    assert status == 2
    assert "--to" in err


def test_steps_of_a_track_follow_one_another_with_three_in_flight(tmp_path: Path) -> None:
    """Launched together, executed one after another."""
    journal = simulated(fixed_case(2, "fcfs", "paged")).write(tmp_path / "run.jsonl")
    steps = whole(journal).tracks[STEPS]
    assert any(before.end == after.start for before, after in pairwise(steps))
