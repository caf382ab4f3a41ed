"""Which files beside a journal are its segments, and which are the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.core.errors import UserError
from stepwell.core.journal_file import later_segments, segment_path
from stepwell.sim.replay import replay
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.core.journals import RotateEvery, record, replays
from stepwell.tests.core.shells import Case, fixed_case

SMALL = Case((TraceRequest(0, 5, 9), TraceRequest(40, 3, 4)), memory={"pages": 20, "page_size": 2})


def test_files_of_the_user_that_have_the_name_of_a_segment_stay(tmp_path: Path) -> None:
    """A note, an empty file, a folder, another journal (its first segment) by date, and one in the way of rotation."""
    path = tmp_path / "run.jsonl"
    record(SMALL, tmp_path / "run.20231117.jsonl")
    for name, text in (("run.20231116.jsonl", b'{"mine":1}\n'), ("run.20231115.jsonl", b""), ("run.00002.jsonl", b"2")):
        (tmp_path / name).write_bytes(text)
    (tmp_path / "run.20231118.jsonl").mkdir()
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir() if each.is_file()}
    case = fixed_case(1, "fcfs", "paged")
    for keep in (0, 2):
        record(case, path, beside=[RotateEvery(9)], keep_segments=keep)
        assert {name: (tmp_path / name).read_bytes() for name in before} == before
        assert (tmp_path / "run.20231118.jsonl").is_dir()
        assert [number for number, _ in later_segments(path)][: 2 if keep == 0 else 0] == ([1, 3] if keep == 0 else [])
        replays(path)
    assert len(later_segments(path)) == 2


def test_a_segment_with_a_damaged_header_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(fixed_case(1, "fcfs", "paged"), path, beside=[RotateEvery(9)])
    segment_path(path, 2).write_bytes(segment_path(path, 2).read_bytes()[:50])
    with pytest.raises(UserError, match=r"run.00002.jsonl is not a Stepwell journal"):
        replay(path)


def test_segments_beyond_five_digits_stay_in_order(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(SMALL, path)
    whole = path.read_bytes()
    for number in (100_000, 7, 99_999):
        segment_path(path, number).write_bytes(whole.replace(b'"segment":0', b'"segment":%d' % number, 1))
    (tmp_path / "run.00008.jsonl.part").touch()
    (tmp_path / "run.0009.jsonl").touch()
    assert [number for number, _ in later_segments(path)] == [7, 99_999, 100_000]
