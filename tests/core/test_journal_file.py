"""Journals on disk: torn, damaged, rotated, bounded, on a full disk, killed; and what they must not contain."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import anyio
import msgspec
import pytest

from stepwell.core.clock import VirtualClock, run_virtual
from stepwell.core.engine import Engine
from stepwell.core.errors import UserError
from stepwell.core.events import Submitted
from stepwell.core.invariants import check_state
from stepwell.core.journal import Gap, Turn, decode_record
from stepwell.core.journal_file import JournalWriter, later_segments, open_journal, segment_path, torn_bytes
from stepwell.core.registry import names
from stepwell.core.snapshot import capture
from stepwell.sim.backend import EchoBackend
from stepwell.sim.cost.linear import Linear
from stepwell.sim.replay import replay, scheduler_of
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.core.journals import (
    RotateEvery,
    decisions,
    file_limit,
    record,
    records,
    replays,
    said,
    writer_for,
)
from stepwell.tests.core.shells import Case, Client, answer_of, fixed_case, prompt_of
from stepwell.tests.helpers.quick import diagonal

SMALL = Case(
    (TraceRequest(0, 5, 9), TraceRequest(40, 3, 4), TraceRequest(41, 7, 2)), memory={"pages": 20, "page_size": 2}
)


def long_case() -> Case:
    """The same crowd comes ten times."""
    case = fixed_case(2, "swap", "paged")
    crowds = range(0, 10_000_000, 1_000_000)
    requests = [(each, later) for later in crowds for each in case.requests]
    return replace(
        case,
        requests=tuple(
            TraceRequest(each.arrival_ns + later, each.prompt_tokens, each.output_tokens, each.klass)
            for each, later in requests
        ),
    )


def test_a_journal_is_its_owners_only(tmp_path: Path) -> None:
    """Later segments too: at level ``tokens`` it holds what was said."""
    record(fixed_case(2, "swap", "paged"), tmp_path / "run.jsonl", segment_bytes=1, batch_turns=1)
    modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
    assert len(modes) > 1
    assert set(modes.values()) == {0o600}, modes


# ------------------------------------------------------------------------------------------------ torn and damaged


def test_a_line_torn_anywhere_costs_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(SMALL, path)
    whole = path.read_bytes()
    turns = replays(path).turns
    last = len(whole.splitlines(keepends=True)[-1])
    assert last > 30
    for cut in range(1, last + 1):
        path.write_bytes(whole[:-cut])
        # Without its line feed only, or whole lines cut away, nothing is torn.
        assert replays(path).turns == (turns if cut == 1 else turns - 1), cut
        assert torn_bytes(path) == (0 if cut in (1, last) else last - cut), cut


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(SMALL, path)
    lines = path.read_bytes().splitlines(keepends=True)
    for damage in (lines[2][:-9] + b"\n", b"\0" * 20 + b"\n", b"[1,2]\n", b"{}\n", b"\n", b'["unknown",1]\n'):
        path.write_bytes(b"".join([*lines[:2], damage, *lines[3:]]))
        with pytest.raises(UserError, match=rf"{re.escape(str(path))}, line 3: not a journal record"):
            replay(path)


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(UserError, match="there is no journal at"):
        replay(path)
    with pytest.raises(UserError, match="there is no journal at"):
        replay(tmp_path / "nowhere" / "run.jsonl")
    for text in (b"", b"\n", b"hello\n", b"{}\n"):
        path.write_bytes(text)
        with pytest.raises(UserError, match=r"run.jsonl is not a Stepwell journal"):
            replay(path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(SMALL, path)
    path.write_bytes(path.read_bytes().replace(b'"stepwell_journal":1', b'"stepwell_journal":7', 1))
    with pytest.raises(UserError, match=r"journal format 7; this version reads up to 1"):
        replay(path)


def test_a_repeat_that_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(SMALL, path)
    whole = path.read_bytes()
    found = re.search(rb'\["repeat",\d+,\d+,\[[\d,]+\],\[\],\[([\d,]+)\]\]', whole)
    assert found is not None
    path.write_bytes(whole[: found.start(1)] + b"99,1,1" + whole[found.end(1) :])
    with pytest.raises(UserError, match=r"run.jsonl, line \d+: a repeat that does not fit together"):
        replay(path)


def test_a_journal_from_before_requests_had_priorities_is_read() -> None:
    old = decode_record(b'[3,[["submit",1,5,4,"chat","default",0,[]]],[]]')
    assert isinstance(old, Turn)
    assert old.events == [Submitted(1, 5, 4, priority=0, program="")]


# ------------------------------------------------------------------------------------------------ rotation


@pytest.mark.parametrize(
    ("policy", "allocator", "turns", "seed"),
    diagonal(sorted(names("policies")), sorted(names("allocators")), [1, 2, 7], [0, 1, 2]),
)
def test_a_replay_may_begin_at_any_segment(policy: str, allocator: str, turns: int, seed: int, tmp_path: Path) -> None:
    case = fixed_case(seed, policy, allocator)
    path, plain = tmp_path / "run.jsonl", tmp_path / "plain.jsonl"
    record(case, plain)
    record(case, path, beside=[RotateEvery(turns)])
    assert decisions(records(path)) == decisions(records(plain))
    whole = replays(path)
    assert whole.segments > 2
    assert whole.gaps == 0
    segments = open_journal(path)
    for number in range(0, len(segments), len(segments) // 12 + 1):
        report = replays(segments[number].path)
        assert report.segments == len(segments) - number
    # Without its beginning, and with a hole in the middle, the rest goes on from its snapshots.
    path.unlink()
    segments[len(segments) // 2].path.unlink()
    assert replays(path).gaps == 1


def test_a_snapshot_is_the_state_it_was_taken_from(tmp_path: Path) -> None:
    """Every state restored from a snapshot has that snapshot, and keeps every law."""
    path = tmp_path / "run.jsonl"
    record(fixed_case(3, "swap", "paged"), path, beside=[RotateEvery(1)])
    for segment in open_journal(path)[1:]:
        scheduler = scheduler_of(segment.header)
        assert msgspec.json.encode(capture(scheduler)) == bytes(segment.header.snapshot)
        check_state(scheduler.state)


def test_segments_are_bounded_in_size_and_number(tmp_path: Path) -> None:
    case = long_case()
    path = tmp_path / "run.jsonl"
    sizes: list[int] = []

    def weigh(writer: JournalWriter, *turn: object) -> None:
        sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))

    writer = record(case, path, segment_bytes=6000, keep_segments=3, batch_turns=1, beside=[weigh])
    left = [number for number, _ in later_segments(path)]
    assert not path.exists()
    assert len(left) == 3
    assert left == list(range(left[0], left[0] + 3))
    assert left[0] > 3
    head = max(len(each.path.read_bytes().splitlines(keepends=True)[0]) for each in open_journal(path))
    assert max(sizes) < (3 + 1) * (max(6000, 2 * head) + 3000)
    assert writer.lost_turns == 0
    replays(path)


def test_a_large_snapshot_does_not_make_every_turn_a_segment(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(fixed_case(2, "swap", "paged"), path, segment_bytes=1, batch_turns=1)
    for segment in open_journal(path)[:-1]:
        head, *rest = segment.path.read_bytes().splitlines(keepends=True)
        assert sum(map(len, rest)) >= len(head)


def test_an_older_journal_of_the_name_is_gone(tmp_path: Path) -> None:
    path, other = tmp_path / "run[1].jsonl", tmp_path / "run[1].more.jsonl"
    record(fixed_case(1, "fcfs", "paged"), path, beside=[RotateEvery(2)])
    assert len(later_segments(path)) > 9
    segment_path(path, 123_456).write_bytes(
        segment_path(path, 1).read_bytes().replace(b'"segment":1', b'"segment":123456')
    )
    other.write_bytes(b"something else")
    record(SMALL, path)
    assert later_segments(path) == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run[1].jsonl", "run[1].more.jsonl"]
    assert replays(path).segments == 1


def test_segments_of_two_journals_are_not_mixed(tmp_path: Path) -> None:
    path, other = tmp_path / "run.jsonl", tmp_path / "other.jsonl"
    record(fixed_case(1, "fcfs", "paged"), path, beside=[RotateEvery(9)])
    record(fixed_case(2, "fcfs", "paged"), other, beside=[RotateEvery(9)])
    segment_path(path, 1).write_bytes(segment_path(other, 1).read_bytes())
    with pytest.raises(UserError, match=r"run.00001.jsonl is not of the same journal as"):
        replay(path)


def test_a_torn_segment_in_the_middle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(fixed_case(1, "fcfs", "paged"), path, beside=[RotateEvery(9)])
    torn = segment_path(path, 1)
    torn.write_bytes(torn.read_bytes()[:-5])
    with pytest.raises(UserError, match=r"run.00001.jsonl is cut short"):
        replay(path)


# ------------------------------------------------------------------------------------------------ a full disk


class FullDisk:
    """A further observer: from turn ``start`` on no file grows beyond ``size`` bytes, for ``turns`` turns."""

    def __init__(self, start: int, turns: int, size: int) -> None:
        self.start, self.end, self.size = start, start + turns, size
        self.turn = 0
        self.limit = file_limit(size)

    def __call__(self, writer: JournalWriter, *turn: object) -> None:
        self.turn += 1
        if self.turn == self.start:
            self.size = self.size or 0
            self.limit = file_limit(self.size)
            self.limit.__enter__()
        elif self.turn == self.end:
            self.limit.__exit__(None, None, None)


@pytest.mark.parametrize("batch_turns", [1, 5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_full_disk_costs_records_and_nothing_else(seed: int, batch_turns: int, tmp_path: Path) -> None:
    case = fixed_case(seed, "swap", "paged")
    plain = tmp_path / "plain.jsonl"
    record(case, plain, batch_turns=batch_turns)
    size = plain.stat().st_size
    for room in (0, size // 3, size // 3 + 1, size // 3 + 50, size // 2):
        path = tmp_path / f"run{room}.jsonl"
        disk = FullDisk(2, 40, room)
        try:
            writer = record(case, path, batch_turns=batch_turns, beside=[disk])
        finally:
            if disk.turn < disk.end:
                disk.limit.__exit__(None, None, None)
        assert writer.lost_turns > 0
        assert path.read_bytes().endswith(b"\n")  # what was half-written is not there
        first = next(iter(open_journal(path)[-1].records()))
        assert isinstance(first, Gap)
        assert (first.turns, first.reason) == (writer.lost_turns, "File too large")
        report = replays(path)
        assert report.gaps == 1
        assert report.segments == 2
        assert not list(tmp_path.glob("*.part"))


def test_while_the_disk_is_full_a_snapshot_is_tried_now_and_then_only(tmp_path: Path) -> None:
    case = fixed_case(1, "swap", "paged")
    scheduler = case.build()
    writer = writer_for(case, scheduler, tmp_path / "run.jsonl", batch_turns=1)
    tries = 0

    def snapshot() -> bytes:
        nonlocal tries
        tries += 1
        return b"null"

    writer._snapshot = snapshot
    with file_limit(0):
        for turn in range(1000):
            writer.observe(turn, [], [])
        writer.close()
    assert writer.lost_turns == 1000
    assert tries == 1 + 999 // 64
    assert [each.name for each in tmp_path.iterdir()] == ["run.jsonl"]


def test_a_journal_that_cannot_begin_says_so(tmp_path: Path) -> None:
    scheduler = SMALL.build()
    with file_limit(10), pytest.raises(OSError, match="File too large"):
        writer_for(SMALL, scheduler, tmp_path / "run.jsonl")


def test_close_may_be_called_again(tmp_path: Path) -> None:
    writer = record(SMALL, tmp_path / "run.jsonl")
    writer.close()


# ------------------------------------------------------------------------------------------------ what is in it


async def serve(case: Case, writer: JournalWriter, engine: Engine) -> dict[int, Client]:
    clock = VirtualClock()
    clients: dict[int, Client] = {}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        for id, request in enumerate(case.requests, 1):
            await clock.sleep_until(request.arrival_ns)
            clients[id] = client = Client(engine.submit(prompt_of(id, request.prompt_tokens), case.max_tokens))
            tasks.start_soon(client.read)
        await engine.drained()
        engine.close()
    writer.close()
    return clients


def served(path: Path, level: str) -> dict[int, Client]:
    case = fixed_case(2, "swap", "paged")
    scheduler = case.build()
    writer = writer_for(case, scheduler, path, level=level, batch_turns=1)

    async def main() -> dict[int, Client]:
        backend = EchoBackend(cost=Linear(case.cost))
        engine = Engine(scheduler, backend, VirtualClock(), observers=[writer.observe], token_observer=writer.tokens)
        return await serve(case, writer, engine)

    return run_virtual(main)


def test_no_token_is_in_a_journal_of_decisions(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    clients = served(path, "decisions")
    assert sum(len(client.stream.tokens) for client in clients.values()) > 50
    numbers = {int(number) for number in re.findall(rb"\d+", b"\n".join(path.read_bytes().splitlines()[1:]))}
    assert not [number for number in numbers if number >= 1_000_000]
    words = set(re.findall(rb'"([^"]*)"', b"\n".join(path.read_bytes().splitlines()[1:])))
    known = b"submit launch done finished admitted preempted blocked resumed rejected repeat cancel chat default pages"
    known += b" seats budget swap recompute stop length queue_full in_flight policy"
    assert words <= {*known.split(), b"", b"short of pages", b"pages run short", b"pages ran out"} | _reasons(words)
    replays(path)


def _reasons(words: set[bytes]) -> set[bytes]:
    """A policy's own word for why it preempted."""
    return {word for word in words if b"page" in word or b"room" in word}


def test_level_tokens_holds_prompts_and_answers(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    clients = served(path, "tokens")
    prompts, answers = said(records(path))
    case = fixed_case(2, "swap", "paged")
    for id, client in clients.items():
        assert prompts[id] == prompt_of(id, case.requests[id - 1].prompt_tokens)
        expected = answer_of(id, len(prompts[id]), len(client.stream.tokens))
        assert answers.get(id, []) == client.stream.tokens == expected
    replays(path)


# ------------------------------------------------------------------------------------------------ killed

KILLED = """
import sys
from pathlib import Path
from stepwell.tests.core.journals import record
from stepwell.tests.core.shells import fixed_case
while True:
    for seed in range(3):
        record(fixed_case(seed, "swap", "paged"), Path(sys.argv[1]), batch_turns=1, segment_bytes=5000, keep_segments=4)
        print(seed, flush=True)
"""


@pytest.mark.parametrize("delay_ms", [0, 7, 23])
def test_what_a_killed_process_wrote_replays(delay_ms: int, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay_ms / 1000)
        process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=30) == -signal.SIGKILL
    if path.exists() and path.stat().st_size == 0:
        return  # killed while a new journal of the name was begun: nothing of it is there yet
    replays(path)
