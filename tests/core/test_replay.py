"""A replay finds no difference where there is none, and names the first one where there is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepwell.core.errors import UserError
from stepwell.core.journal_file import segment_path
from stepwell.core.registry import names
from stepwell.sim.metrics import RunMetrics
from stepwell.sim.replay import Difference, replay
from stepwell.tests.core.journals import RotateEvery, record, replays
from stepwell.tests.core.shells import fixed_case
from stepwell.tests.golden.make import HERE, golden_case

GOLDEN = sorted(HERE.glob("*.jsonl"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_golden_journals_keep_replaying(path: Path) -> None:
    """If a change of decisions was meant, write them anew: ``python -m stepwell.tests.golden.make``."""
    assert replays(path).steps > 20


def test_golden_journals_cover_what_can_happen() -> None:
    text = b"".join(path.read_bytes() for path in GOLDEN)
    assert {path.stem for path in GOLDEN} >= {*names("policies"), "segments", "segments.00001"}
    for word in ("repeat", "preempted", "resumed", "failed", "cancel", "blocked", "swap", "recompute", "length"):
        assert f'"{word}"'.encode() in text, word


def test_observers_of_a_replay_see_the_run(tmp_path: Path) -> None:
    case, path = golden_case("swap"), tmp_path / "run.jsonl"
    live = RunMetrics()
    record(case, path, beside=[lambda writer, *turn: live.observe(*turn)])
    again = RunMetrics()
    report = replay(path, observers=[again.observe])
    assert report.difference is None
    assert again.requests == live.requests
    assert (again.steps, again.busy_ns, again.kv_page_ns) == (live.steps, live.busy_ns, live.kv_page_ns)
    assert report.steps == live.steps


def test_progress_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    case = golden_case("swap")
    record(case, path, beside=[], jumps=False)
    told: list[int] = []
    replay(path, progress=told.append)
    assert told == sorted(told)


# ------------------------------------------------------------------------------------------------ one decision changed

Lines = list[Any]


def first(lines: Lines, tag: str, want: Callable[[Any], bool] = lambda it: True) -> tuple[int, Any, Any]:
    """(line number, turn, instruction) of the first turn's instruction ``tag``."""
    for number, turn in enumerate(lines, 2):
        if isinstance(turn[0], int):
            for instruction in turn[2]:
                if instruction[0] == tag and want(instruction):
                    return number, turn, instruction
    raise AssertionError(f"no {tag} in the journal")


def mutated(tmp_path: Path, policy: str, change: Callable[[Lines], Any]) -> tuple[Difference, Any]:
    path = tmp_path / "run.jsonl"
    record(golden_case(policy), path)
    head, *rest = path.read_bytes().splitlines(keepends=True)
    lines = [msgspec.json.decode(line) for line in rest]
    told = change(lines)
    path.write_bytes(head + b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    found = replay(path).difference
    assert found is not None
    assert found.segment == "run.jsonl"
    for word in (found.segment, f"line {found.line}", str(found.now_ns), found.field, found.recorded, found.replayed):
        assert word in str(found)
    return found, told


def test_a_page_that_differs_is_named(tmp_path: Path) -> None:
    def change(lines: Lines) -> Any:
        number, turn, launch = first(lines, "launch", lambda it: len(it[7]) > 0)
        request, pages = launch[7][-1]
        pages[-1] += 1
        return number, turn[0], launch[1], request, pages[-1]

    found, (number, now_ns, step, request, page) = mutated(tmp_path, "fcfs", change)
    assert (found.line, found.now_ns, found.step, found.request) == (number, now_ns, step, request)
    assert found.field == "launch.tables"
    assert str(page) in found.recorded
    assert str(page - 1) in found.replayed


def test_a_page_of_growth_that_differs_is_named_with_its_request(tmp_path: Path) -> None:
    def change(lines: Lines) -> Any:
        number, _, launch = first(lines, "launch", lambda it: len(it[3]) >= 4)
        launch[3][3] += 1
        return number, launch[1], launch[3][2], launch[3][3]

    found, (number, step, request, page) = mutated(tmp_path, "fcfs", change)
    assert (found.line, found.step, found.request, found.field) == (number, step, request, "launch.growth")
    assert (found.recorded, found.replayed) == (f"[1] ({request}, {page})", f"[1] ({request}, {page - 1})")


def test_a_page_within_a_run_is_named_at_its_step_and_time(tmp_path: Path) -> None:
    def change(lines: Lines) -> Any:
        number, run = next(
            (n, each) for n, each in enumerate(lines, 2) if each[0] == "repeat" and len(each[5]) >= 3 and each[5][-3]
        )
        offset, request = run[5][-3:-1]
        run[5][-1] += 1
        return number, run[2] + sum(run[3][: offset + 1]), run[1] + offset + 1, request, run[5][-1]

    found, (number, now_ns, step, request, page) = mutated(tmp_path, "fcfs", change)
    assert (found.line, found.now_ns, found.step, found.request) == (number, now_ns, step, request)
    assert found.field == "launch.growth"
    assert str(page) in found.recorded


def test_a_slice_that_differs_is_named(tmp_path: Path) -> None:
    def change(lines: Lines) -> Any:
        number, _, launch = first(lines, "launch", lambda it: len(it[6]) > 0)
        launch[6][0][2] += 1
        return number, launch[1], launch[6][0][0]

    found, (number, step, request) = mutated(tmp_path, "swap", change)
    assert (found.line, found.step, found.request, found.field) == (number, step, request, "launch.slices")


def test_another_victim_is_named(tmp_path: Path) -> None:
    def change(lines: Lines) -> Any:
        number, turn, preempted = first(lines, "preempted")
        preempted[1] += 1
        return number, turn[0], preempted[1]

    found, (number, now_ns, victim) = mutated(tmp_path, "swap", change)
    assert (found.line, found.now_ns, found.field) == (number, now_ns, "preempted.request")
    assert (found.recorded, found.replayed) == (str(victim), str(victim - 1))


def test_another_end_is_named(tmp_path: Path) -> None:
    def change(lines: Lines) -> Any:
        number, _, finished = first(lines, "finished")
        finished[3] += 1
        return number, finished[1], finished[3]

    found, (number, request, tokens) = mutated(tmp_path, "static", change)
    assert (found.line, found.request, found.field) == (number, request, "finished.tokens")
    assert (found.recorded, found.replayed) == (str(tokens), str(tokens - 1))


def test_a_decision_too_few_or_too_many_is_named(tmp_path: Path) -> None:
    def drop(lines: Lines) -> Any:
        number, turn, admitted = first(lines, "admitted")
        turn[2].remove(admitted)
        return number, admitted[1]

    found, (number, _) = mutated(tmp_path, "fcfs", drop)
    assert (found.line, found.field) == (number, "instruction")
    assert "Admitted" in found.replayed

    def add(lines: Lines) -> Any:
        number, turn, _ = first(lines, "finished")
        turn[2].append(["wake", 5])
        return number

    found, number = mutated(tmp_path, "fcfs", add)
    assert (found.line, found.field, found.recorded, found.replayed) == (
        number,
        "instruction",
        "Wake(at_ns=5)",
        "nothing",
    )


def test_events_that_cannot_have_happened_are_named(tmp_path: Path) -> None:
    def back(lines: Lines) -> Any:
        number, turn, _ = first(lines, "finished")
        turn[0] = 1
        return number

    found, number = mutated(tmp_path, "fcfs", back)
    assert (found.line, found.field, found.recorded) == (number, "events", "accepted")
    assert "clock monotone" in found.replayed

    def other_step(lines: Lines) -> Any:
        number, turn, _ = first(lines, "finished")
        turn[1][0][1] += 1
        return number

    found, number = mutated(tmp_path, "fcfs", other_step)
    assert (found.line, found.field) == (number, "events")
    assert "in flight are" in found.replayed


def test_another_time_is_named_where_a_decision_depended_on_it(tmp_path: Path) -> None:
    """A step that ended later is a fact, not a decision; but this batch request then aged before its turn came."""
    differences = 0
    path = tmp_path / "run.jsonl"
    case = fixed_case(1, "chat-batch", "paged")
    record(replace(case, scheduler={**case.scheduler, "depth": 1}), path)
    head, *rest = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(rest):
        later = re.sub(rb"^\[(\d+),", lambda match: b"[%d," % (int(match[1]) + 1_000_000), line)
        path.write_bytes(b"".join([head, *rest[:number], later, *rest[number + 1 :]]))
        found = replay(path).difference
        if later != line and number + 1 < len(rest):
            assert found is not None
            differences += found.field != "events"
    assert differences > 0


def test_a_header_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(golden_case("fcfs"), path)
    whole = path.read_bytes()
    for old, new, message in (
        (b'"policy":"fcfs","options"', b'"policy":"swap","options"', "its header names policy 'swap'"),
        (b'"page_size":', b'"size_page":', "the configuration in its header does not fit this version"),
        (b'"snapshot":null', b'"snapshot":{"now_ns":1}', "its snapshot is damaged"),
    ):
        assert old in whole
        path.write_bytes(whole.replace(old, new, 1))
        with pytest.raises(UserError, match=message):
            replay(path)


def test_a_configuration_that_is_not_that_of_the_digest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(golden_case("fcfs"), path, beside=[RotateEvery(20)])
    for each in (path, segment_path(path, 1)):
        whole = each.read_bytes()
        assert b'"max_failures":3' in whole
        each.write_bytes(whole.replace(b'"max_failures":3', b'"max_failures":4', 1))
        with pytest.raises(UserError, match=rf"{each.name}: the configuration in the header does not match its digest"):
            replay(path)
        each.write_bytes(whole)
    replays(path)


def test_a_configuration_without_its_options_is_completed_before_it_is_held_to_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(fixed_case(1, "fcfs", "paged"), path)
    head, *rest = path.read_bytes().splitlines(keepends=True)
    header = msgspec.json.decode(head)
    assert header["config"]["cost"]["options"]
    header["config"]["cost"]["options"] = {}
    del header["config"]["journal"]
    path.write_bytes(b"".join([msgspec.json.encode(header) + b"\n", *rest]))
    replays(path)


def test_a_long_value_is_shown_where_it_differs(tmp_path: Path) -> None:
    """A table of hundreds of pages, one of which is another; and an instruction too many with such a table."""

    def one_page(lines: Lines) -> Any:
        number, _, launch = first(lines, "launch", lambda it: len(it[7]) > 0)
        pages = launch[7][-1][1]
        pages[1:] = [*range(1000, 1300)]
        return number

    found, _ = mutated(tmp_path, "fcfs", one_page)
    assert re.fullmatch(r"\[\d+\]\[1\]\[1\] 1000", found.recorded)

    def too_many(lines: Lines) -> Any:
        _, turn, launch = first(lines, "launch", lambda it: len(it[7]) > 0)
        launch[7][-1][1] = [*range(1000, 1300)]
        turn[2].append(launch)
        turn[2].remove(launch)
        turn[2].insert(0, launch)

    found, _ = mutated(tmp_path, "fcfs", too_many)
    assert found.field == "instruction"
    assert len(found.recorded) <= 200
    assert len(str(found)) < 600
