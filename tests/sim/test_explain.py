"""What a journal tells: the numbers of the run it records, its turns as lines, and one request's story."""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO

import pytest

from stepwell.cli.journal import lines as journal_lines
from stepwell.core import journal_file
from stepwell.core.config import Config, JournalConfig, MemoryConfig, SchedulerConfig, WorkloadConfig
from stepwell.core.errors import UserError
from stepwell.sim import run
from stepwell.sim.explain import explain
from stepwell.sim.journal_read import stat, stretches
from stepwell.sim.journal_show import show
from stepwell.sim.run import Result, simulate
from stepwell.sim.workload.request import TraceRequest, Workload
from stepwell.tests.cli import hand

POLICIES = ("fcfs", "swap", "chat-batch", "static")


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hand")
    simulate(hand.scenario(folder), journal=folder / "run.jsonl")
    return folder / "run.jsonl"


def small(policy: str, journal: JournalConfig | None = None) -> Config:
    return Config(
        scheduler=SchedulerConfig(policy=policy),
        memory=MemoryConfig(pages=500),
        workload=WorkloadConfig(limit=150),
        journal=journal or JournalConfig(),
    )


# ------------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize("policy", POLICIES)
def test_summary_from_the_journal_is_that_of_the_run(policy: str, tmp_path: Path) -> None:
    result = simulate(small(policy), journal=tmp_path / "run.jsonl")
    found = stat(tmp_path / "run.jsonl")
    assert found.summary == result.summary
    assert (found.steps, found.requests, found.segments) == (result.summary.steps, 150, 1)
    assert found.bytes == (tmp_path / "run.jsonl").stat().st_size
    assert found.instructions["finished"] == 150
    assert found.instructions.get("preempted", 0) == result.summary.all.preemptions
    assert (found.torn, found.partial, found.gaps) == (False, False, [])


def split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Result]:
    """A journal in several segments, far smaller than configuration allows."""
    monkeypatch.setattr(run, "_MIB", 10_000)
    result = simulate(small("swap", JournalConfig(segment_mib=1, keep_segments=0)), journal=tmp_path / "run.jsonl")
    return tmp_path / "run.jsonl", result


def test_segments_are_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, result = split(tmp_path, monkeypatch)
    found = stat(path)
    assert found.segments >= 3
    assert found.summary == result.summary
    assert len(stretches(path)) == 1


def test_a_journal_whose_beginning_is_gone_tells_of_what_came_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, result = split(tmp_path, monkeypatch)
    path.unlink()
    found = stat(path)
    assert found.partial
    assert found.summary is not None
    later = [each for each in result.metrics.requests.values() if each.arrival_ns >= found.start_ns]
    assert 0 < found.summary.offered <= len(later)
    assert found.summary.ended == {"stop": found.summary.offered}
    assert found.summary.kv_utilisation is None
    # Latencies of requests that arrived in what is left are those of the run.
    ids = sorted(result.metrics.requests)[-found.summary.offered :]
    waits = sorted(result.metrics.requests[id].first_token_ns - result.metrics.requests[id].arrival_ns for id in ids)
    assert found.summary.all.ttft_ms.count == len(ids)
    assert found.summary.all.ttft_ms.p99 == waits[-(len(ids) // 100) - 1] / 1e6
    first = explain(path, ids[0] - 1)
    assert any("here the journal begins" in text for _, text in first.moments)
    assert first.end.startswith("ends of itself")
    gone = min(result.metrics.requests.values(), key=lambda each: each.finished_ns).id
    told = f"no request {gone} in .*it begins with segment 1; segment 0 is missing; .*it tells of requests .* to 150"
    with pytest.raises(UserError, match=told):
        explain(path, gone)
    assert any("segment 0 is missing" in line for line in journal_lines(found))


def test_the_last_segment_alone_tells_of_the_requests_in_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = split(tmp_path, monkeypatch)
    last = stretches(path)[0].segments[-1]
    for each in stretches(path)[0].segments[:-1]:
        each.path.unlink()
    found = stat(path)
    number = last.header.segment
    assert (found.extent.first_segment, found.extent.missing) == (number, [(0, number - 1)])
    assert found.extent.carried
    assert found.first_request == found.extent.carried[0]
    assert found.unfinished == 0
    told = f"segments 0 to {number - 1} are missing; .*it tells of requests {found.first_request} to 150"
    with pytest.raises(UserError, match=told):
        explain(path, 1)
    assert stat(last.path).extent.missing == []


def test_a_gap_and_a_torn_tail_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.jsonl"
    writes = 0
    write_all = journal_file._write_all

    def failing(file: BinaryIO, data: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes == 3:
            raise OSError(28, "No space left on device")
        write_all(file, data)

    monkeypatch.setattr(journal_file, "_write_all", failing)
    result = simulate(small("fcfs"), journal=path)
    found = stat(path)
    assert [gap.turns for gap in found.gaps] == [result.lost_turns]
    assert result.lost_turns > 0
    assert found.partial
    assert any("GAP" in line and "No space left" in line for line in show(path))
    last = stretches(path)[-1].segments[-1].path
    last.write_bytes(last.read_bytes()[:-20])
    assert stat(path).torn


@pytest.mark.parametrize(
    ("content", "says"),
    [("", "no header"), ("hello\n", "no header"), ('{"stepwell_journal": 99}\n', "x.jsonl")],
)
def test_what_is_no_journal_is_refused(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(content)
    for read in (stat, lambda path: list(show(path)), lambda path: explain(path, 1)):
        with pytest.raises(UserError, match=says):
            read(tmp_path / "x.jsonl")


def test_a_damaged_line_is_named(journal: Path, tmp_path: Path) -> None:
    lines = journal.read_text().splitlines(keepends=True)
    lines[2] = lines[2][:10] + "!" + lines[2][11:]
    (tmp_path / "x.jsonl").write_text("".join(lines))
    with pytest.raises(UserError, match="line 3"):
        stat(tmp_path / "x.jsonl")


# ------------------------------------------------------------------------------------------------ lines


def test_lines_of_the_hand_worked_run(journal: Path) -> None:
    assert list(show(journal)) == [
        "    0.000000 s  step 1      arrive 1 (chat, 8 tokens) → admit 1; launch 1: prefill 1 [0..8) ●",
        "    0.000000 s  step 1      arrive 2 (chat, 8 tokens)",
        "    0.000000 s  step 2      done 1 → admit 2; launch 2: decode 1, prefill 2 [0..8) ●",
        "    0.000000 s  step 3      done 2 → launch 3: decode 2",
        "    0.000000 s  step 3      10 steps 3 to 12 done, each repeated: decode 2, 0.012 µs a step on average,"
        " 4 pages added",
        "    0.000000 s  step 14     done 13 → preempt 2 for 1 by recompute (pages ran out; 19 tokens);"
        " launch 14: decode 1",
        "    0.000000 s  step 15     done 14 → launch 15: decode 1; 2 blocked: KV pages were short (2 short)",
        "    0.000000 s  step 15     5 steps 15 to 19 done, each repeated: decode 1, 0.011 µs a step on average,"
        " 1 page added",
        "    0.000000 s  step 21     done 20: 1 ended → finish 1 (stop, 20 tokens); admit 2;"
        " launch 21: prefill 2 [0..20) ●",
        "    0.000000 s  step 22     done 21 → launch 22: decode 1",
        "    0.000000 s  step 22     6 steps 22 to 27 done, each repeated: decode 1, 0.011 µs a step on average,"
        " 1 page added",
        "    0.000000 s  step 28     done 28: 2 ended → finish 2 (stop, 20 tokens)",
    ]


def test_lines_from_a_time_and_of_a_request(journal: Path) -> None:
    assert len(list(show(journal, from_ns=246))) == 4
    of_two = list(show(journal, request=2))
    assert [line.split()[3] for line in of_two] == ["1", "2", "3", "14", "15", "21", "22", "28"]


# ------------------------------------------------------------------------------------------------ the story


def test_story_of_the_request_that_gave_way(journal: Path) -> None:
    story = explain(journal, 2)
    assert [at_ns for at_ns, _ in story.moments] == [1, 18, 37, 169, 246, 353]
    arrives, admitted, first, gives_way, again, ends = (text for _, text in story.moments)
    assert arrives == "arrives; 1 request running, 0 waiting before it"
    assert admitted == "is admitted after 0.017 µs in line"
    assert first == "gives its first token, 0.036 µs after it arrived (prompt in 1 slice)"
    assert gives_way == (
        "gives way to request 1 (chat) (preemption 1, reason 'pages ran out'): its 5 pages are dropped,"
        " 19 tokens must be computed again"
    )
    assert again == (
        "is admitted again after 0.077 µs off the device: 0.066 µs at the head of the line,"
        " while KV pages were short (2 missing at most)"
    )
    assert ends == "ends of itself (an end token or a stop string), after 20 output tokens"
    totals = story.totals
    assert (totals.waited_ns, totals.away_ns, totals.longest_gap_ns) == (17, 77, 107)
    assert (totals.first_token_ns, totals.last_token_ns, totals.end_ns) == (37, 353, 353)
    assert (totals.recomputed_tokens, totals.copied_pages, totals.preemptions, totals.tokens) == (19, 0, 1, 20)
    assert story.lines()[-1] == "Preemptions cost 19 tokens computed again and 0 pages copied, out and back together."


def test_story_of_the_request_that_did_not(journal: Path) -> None:
    story = explain(journal, 1)
    assert [at_ns for at_ns, _ in story.moments] == [0, 0, 18, 246]
    assert story.totals.longest_gap_ns == 19
    assert story.totals.preemptions == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_stories_agree_with_the_metrics(policy: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    result = simulate(small(policy), journal=path)
    preempted = [each.id for each in result.metrics.requests.values() if each.preemptions]
    if policy != "static":
        assert preempted
    for id in [*preempted[:6], 1, 75, 150]:
        record, totals = result.metrics.requests[id], explain(path, id).totals
        assert (totals.arrival_ns, totals.first_token_ns) == (record.arrival_ns, record.first_token_ns)
        assert (totals.last_token_ns, totals.end_ns) == (record.last_token_ns, record.finished_ns)
        assert (totals.tokens, totals.preemptions) == (record.tokens, record.preemptions)
        assert totals.arrival_ns + totals.waited_ns == record.admitted_ns


def test_cost_of_all_preemptions_adds_up(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    result = simulate(small("fcfs"), journal=path)
    told = sum(
        explain(path, each.id).totals.recomputed_tokens for each in result.metrics.requests.values() if each.preemptions
    )
    assert told == result.summary.recomputed_tokens > 0


def test_swaps_are_told_with_the_pages_copied(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    result = simulate(small("swap"), journal=path)
    id = next(each.id for each in result.metrics.requests.values() if each.preemptions)
    story = explain(path, id)
    moved = next(text for _, text in story.moments if "move to the host" in text)
    pages = re.search(r"its (\d+) pages", moved)
    assert pages is not None
    assert story.totals.copied_pages >= 2 * int(pages[1])
    assert any(text.startswith("is copied back after") for _, text in story.moments)


def test_rejected_cancelled_and_waiting_requests(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    requests = [TraceRequest(0, 100, 500), TraceRequest(1, 60, 5, cancel_ns=30_000_000), TraceRequest(2, 600, 5)]
    config = Config(scheduler=SchedulerConfig(running_limit=1, max_context=600))
    simulate(config, workload=Workload("w", requests), journal=path)
    refused = explain(path, 3)
    assert refused.end == "is refused: its prompt is longer than 599 tokens, the most that fits"
    left = explain(path, 2)
    assert left.end.startswith("is cancelled by its client, after 0 output tokens")
    assert any("has waited 30 ms so far: 21 ms at the head" in text and "seat" in text for _, text in left.moments)
    assert "without a token" in left.lines()[-1]


def test_a_request_that_is_not_there(journal: Path) -> None:
    with pytest.raises(UserError, match="it tells of requests 1 to 2"):
        explain(journal, 3)


def test_records_that_do_not_fit_together(journal: Path, tmp_path: Path) -> None:
    lines = journal.read_text().splitlines(keepends=True)
    (tmp_path / "x.jsonl").write_text("".join([lines[0], *lines[2:]]))
    with pytest.raises(UserError, match="do not fit together"):
        stat(tmp_path / "x.jsonl")


def test_who_went_first(tmp_path: Path) -> None:
    """One seat: batch request 2 waits until chat requests 3 and 4, which arrive later, have had it."""
    path = tmp_path / "run.jsonl"
    requests = [
        TraceRequest(0, 10, 50),
        TraceRequest(1, 10, 5, "batch"),
        TraceRequest(2, 10, 5),
        TraceRequest(3, 10, 5),
    ]
    config = Config(scheduler=SchedulerConfig(policy="chat-batch", running_limit=1))
    simulate(config, workload=Workload("w", requests), journal=path)
    story = explain(path, 2)
    assert story.moments[0][1] == "arrives; 1 request running, 0 waiting before it"
    assert story.moments[1][1].endswith("2 requests went first, 2 of them arrived later")
    assert "behind requests 3, 4, while every seat was taken" in story.moments[1][1]
    assert explain(path, 4).moments[0][1] == "arrives; 1 request running, 2 waiting before it (2, 3)"
