"""What a person types and what comes back: tables, journals, stories, refusals."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from stepwell.cli.tables import print_runs, time_of
from stepwell.core.registry import names
from stepwell.sim.run import simulate
from stepwell.tests.cli.hand import call, scenario

POLICIES = """chat-batch conserve cost-aware edf fcfs least-slack mlfq past-future plas priority sarathi sjf srpt static
swap vllm vtc""".split()


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")


@pytest.fixture
def hand(tmp_path: Path) -> Path:
    return scenario(tmp_path)


def told(text: str) -> list[list[str]]:
    """Words of each line, so that widths of columns do not matter."""
    return [line.split() for line in text.splitlines()]


# ------------------------------------------------------------------------------------------------ sim


def test_table_of_the_hand_worked_run(hand: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "sim", hand)
    assert (status, err) == (0, "")
    lines = told(out)
    for line in told(
        """\
        two.csv (simple): 2 rows, 2 used, 0 dropped, 0 refused (0.00 % left out)
        TTFT all 0.027 µs 0.018 µs 0.036 µs 0.036 µs 0.036 µs
        ITL all 0.0143 µs 0.012 µs 0.012 µs 0.019 µs 0.107 µs
        E2E all 0.299 µs 0.246 µs 0.352 µs 0.352 µs 0.352 µs
        SLO attainment 50.0 %
        by recompute 1
        recompute tax 26.0 %
        device busy 100.0 %
        rejected 0"""
    ):
        assert line in lines


def test_json_is_the_summary_and_the_same_every_time(hand: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "sim", hand, "--json")
    assert status == 0
    found = json.loads(out)
    assert (found["policy"], found["seed"], found["workload"]["requests"]) == ("fcfs", 0, 2)
    assert found["summary"]["recomputed_tokens"] == 19
    assert found["summary"]["all"]["ttft_ms"]["p99"] == pytest.approx(36e-6)
    assert call(capsys, "sim", hand, "--json")[1] == out


def test_policies_side_by_side_get_the_same_requests(hand: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("sim", hand, "--policy", "fcfs", "--policy", "swap", "--set", "memory.host_pages=10")
    status, out, _ = call(capsys, *argv)
    assert status == 0
    assert ["fcfs", "swap"] in told(out)
    assert ["preempted", "by", "swap", "0", "1"] in told(out)
    assert ["by", "recompute", "1", "0"] in told(out)
    lines = [json.loads(line) for line in call(capsys, *argv, "--json")[1].splitlines()]
    assert [line["policy"] for line in lines] == ["fcfs", "swap"]
    assert len({line["summary"]["offered"] for line in lines}) == 1


def test_a_shadow_is_told_of_below_the_table_and_changes_nothing_in_it(
    hand: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("sim", hand, "--set", "memory.host_pages=10")
    alone, shadowed = call(capsys, *argv)[1], call(capsys, *argv, "--shadow", "swap")[1]
    assert shadowed.startswith(alone.rstrip())
    assert ["recompute", "swap", "1", "1"] in told(shadowed)
    found = json.loads(call(capsys, *argv, "--shadow", "swap", "--json")[1])
    assert found["summary"] == json.loads(call(capsys, *argv, "--json")[1])["summary"]
    assert found["shadow"]["differed"] == 1
    assert found["shadow"]["compared"] + found["shadow"]["repeated"] == found["summary"]["steps"]
    step = {"now_ns": 169, "step": 14, "klass": "chat"}
    assert found["shadow"]["examples"] == [
        {**step, "request": 1, "live": "run", "shadow": "hold"},  # pages that are copied come free a step later
        {**step, "request": 2, "live": "recompute", "shadow": "swap"},
    ]
    status, _, err = call(capsys, *argv, "--shadow", "swop")
    assert status == 2
    assert "scheduler.shadow: unknown policy 'swop'; did you mean 'swap'?" in err
    oracle = ("--shadow", "srpt", "--set", "scheduler.shadow_options.predictor=oracle")
    assert call(capsys, *argv, *oracle)[0] == 0


def test_narrow_output_shows_fewer_policies_at_a_time(
    hand: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = call(capsys, "sim", hand, "--policy", "fcfs", "--policy", "static")[1]
    assert max(map(len, out.splitlines())) <= 40
    assert told(out).count(["fcfs"]) == told(out).count(["static"]) == 1


def test_csv_has_a_row_a_request_and_policy(hand: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = hand.parent / "requests.csv"
    assert call(capsys, "sim", hand, "--policy", "fcfs", "--policy", "static", "--csv", file)[0] == 0
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [(row["policy"], row["id"]) for row in rows] == [
        ("fcfs", "1"),
        ("fcfs", "2"),
        ("static", "1"),
        ("static", "2"),
    ]
    assert [row["place"] for row in rows] == ["1", "2", "1", "2"]
    assert (rows[1]["first_token_ns"], rows[1]["finished_ns"], rows[1]["preemptions"]) == ("37", "353", "1")


def test_a_class_without_objectives_has_no_attainment_to_show(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = [line for line in told(call(capsys, "sim", "--limit", "40")[1]) if line[:2] == ["SLO", "attainment"]]
    assert row == ["SLO", "attainment", *row[2:4], *row[2:4], "–"]
    assert row[3] == "%"


def test_limit_rate_and_seed_reach_the_workload(capsys: pytest.CaptureFixture[str]) -> None:
    def run(*argv: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(call(capsys, "sim", "--limit", "40", "--json", *argv)[1])
        return found

    assert run()["workload"]["requests"] == 40  # type: ignore[index]
    assert any("rate multiplied by" in note for note in run("--rate", "2")["workload"]["notes"])  # type: ignore[index]
    assert run("--seed", "5")["seed"] == 5
    assert run("--seed", "5")["summary"] != run("--seed", "6")["summary"]
    assert run("--seed", "5") == run("--seed", "5")


def test_environment_is_a_layer(
    hand: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL__MEMORY__PAGES", "100")
    assert json.loads(call(capsys, "sim", hand, "--json")[1])["summary"]["preemptions_recompute"] == 0


def test_skipped_rows_are_in_the_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.csv"
    file.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,8,20\n0.1,0,4\n0.2,8,0\n")
    status, _, err = call(capsys, "sim", "--trace", file)
    assert status == 2
    assert f"{file}, line 3" in err
    out = call(capsys, "sim", "--trace", file, "--set", "workload.skip_bad=true")[1]
    assert "3 rows, 1 used, 1 dropped, 1 refused" in out
    assert "line 4: dropped: no output tokens" in out


# ------------------------------------------------------------------------------------------------ journals


@pytest.fixture
def journal(hand: Path) -> Path:
    simulate(hand, journal=hand.parent / "run.jsonl")
    return hand.parent / "run.jsonl"


def test_replay_says_yes_and_names_the_first_difference(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "replay", journal)
    assert status == 0
    assert re.fullmatch(r"\d+ turns, 28 steps, every decision as recorded\n", out)
    text = journal.read_text()
    assert '["preempted",2,' in text
    journal.write_text(text.replace('["preempted",2,', '["preempted",1,'))
    status, out, _ = call(capsys, "replay", journal)
    assert status == 1
    assert "DIFFERENT" in out
    assert "at 169 ns" in out
    assert "preempted.request" in out


def test_replay_and_stat_say_what_a_crash_left(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = journal.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for command in (("replay",), ("journal", "stat")):
        assert "torn" not in call(capsys, *command, journal)[1]
        assert "unfinished" not in call(capsys, *command, journal)[1]
        journal.write_bytes(whole[:-10])
        status, out, _ = call(capsys, *command, journal)
        assert status == 0
        assert f"the last line is torn ({last - 10} bytes ignored)\n" in out
        assert "1 request unfinished at the end\n" in out
        journal.write_bytes(whole[:-last])
        status, out, _ = call(capsys, *command, journal)
        assert "torn" not in out
        assert "1 request unfinished at the end\n" in out
        journal.write_bytes(whole.splitlines(keepends=True)[0])
        status, out, _ = call(capsys, *command, journal)
        assert (status, "holds no turn" in out, "events:" in out) == (0, True, False)
        journal.write_bytes(whole)


def test_a_journal_for_each_policy(hand: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = hand.parent / "both.jsonl"
    assert call(capsys, "sim", hand, "--policy", "fcfs", "--policy", "static", "--journal", base)[0] == 0
    assert not base.exists()
    for policy in ("fcfs", "static"):
        status, out, _ = call(capsys, "replay", hand.parent / f"both.{policy}.jsonl")
        assert (status, "every decision as recorded" in out) == (0, True)


def test_stat_prints_the_table_of_the_run(hand: Path, journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_run = call(capsys, "sim", hand)[1]
    of_journal = call(capsys, "journal", "stat", journal)[1]
    table = of_run[of_run.index("\n\n") :]
    assert "TTFT" in table
    assert of_journal.endswith(table)
    assert "2 requests" in of_journal
    assert "28 steps" in of_journal
    found = json.loads(call(capsys, "journal", "stat", journal, "--json")[1])
    assert found["summary"] == json.loads(call(capsys, "sim", hand, "--json")[1])["summary"]


def test_show(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = call(capsys, "journal", "show", journal, "--limit", "2")[1]
    assert out.splitlines()[0].endswith("arrive 1 (chat, 8 tokens) → admit 1; launch 1: prefill 1 [0..8) ●")
    assert len(out.splitlines()) == 2
    assert len(call(capsys, "journal", "show", journal, "--from", "246")[1].splitlines()) == 4
    assert len(call(capsys, "journal", "show", journal, "--from", "0.000246ms")[1].splitlines()) == 4
    assert call(capsys, "journal", "show", journal, "--from", "soon")[0] == 2
    assert call(capsys, "journal", "show", journal, "--from", "1s")[0] == 2


def test_explain(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "explain", journal, "--request", "2")
    flat = " ".join(out.split())
    assert status == 0
    assert "gives way to request 1 (chat) (preemption 1, reason 'pages ran out')" in flat
    assert "while KV pages were short" in flat
    assert max(map(len, out.splitlines())) <= 80
    found = json.loads(call(capsys, "explain", journal, "--request", "2", "--json")[1])
    assert found["totals"]["recomputed_tokens"] == 19


# ------------------------------------------------------------------------------------------------ config, policies


def test_config_show_reads_back_as_the_same_configuration(hand: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = call(capsys, "config", "show", hand)[1]
    assert f"page_size = 4  # {hand}" in shown
    assert "token_budget = 2048  # default" in shown
    again = hand.parent / "again.toml"
    again.write_text(shown)
    digest = call(capsys, "config", "check", hand)[1].split()[-1]
    assert call(capsys, "config", "check", again)[1].split()[-1] == digest


def test_policies(capsys: pytest.CaptureFixture[str]) -> None:
    listed = call(capsys, "policies", "list")[1]
    assert [line.split()[0] for line in listed.splitlines()] == POLICIES
    described = call(capsys, "policies", "describe", "chat-batch")[1]
    assert "promises: bounded wait, respects rank" in described
    assert "API version: the plugin states none; this Stepwell offers 1" in described
    assert "aging_s (float >= 0, <= 1000000000; default 30.0)" in described
    assert "paged" in call(capsys, "policies", "list", "--kind", "allocators")[1]
    assert json.loads(call(capsys, "policies", "describe", "static", "--json")[1])["options"][0]["name"] == "batch_size"


# ------------------------------------------------------------------------------------------------ bench, demo


def test_bench_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.sim.bench.RUNNING", (4,))
    monkeypatch.setattr("stepwell.sim.bench.WAITING", (10, 20))
    out = call(capsys, "bench", "scheduler", "--steps", "30", "--requests", "50", "--json")[1]
    machine, steady, change, _, whole = (json.loads(line) for line in out.splitlines())
    assert machine["loop_ns_per_iteration"] > 0
    assert (steady["running"], steady["waiting"]) == (4, 0)
    assert steady["steady_p50_us"] > 0
    assert steady["steady_asked_p50_us"] > 0
    assert (change["running"], change["waiting"]) == (256, 10)
    assert change["change_p50_us"] > steady["steady_p50_us"]
    assert change["steady_p50_us"] > 0
    assert change["rss_mb"] > 1
    assert (whole["growth_from"], whole["growth_to"], whole["requests"]) == (10, 20, 50)
    assert whole["growth"] > 0 < whole["requests_per_s"]
    monkeypatch.setattr("stepwell.cli.bench.names", lambda group: ["static", "vtc"])
    small = ("bench", "scheduler", "--steps", "10", "--requests", "20", "--policy", "all", "--allocator", "prefix")
    out = call(capsys, *small)[1]
    assert "static, 4 running, 0 waiting: a steady decode step takes" in out
    assert "vtc, 256 running, 20 waiting: a steady decode step takes" in out
    assert "vtc: a step with changes takes" in out
    out = call(capsys, "bench", "sim", "--requests", "60", "--repeats", "2", "--json", "--traces", "nowhere")[1]
    lines = [json.loads(line) for line in out.splitlines()][1:]
    assert [(line["load"], line["journal"]) for line in lines[:4]] == [
        (0.9, False),
        (0.9, True),
        (0.3, False),
        (0.3, True),
    ]
    assert all(line["requests_per_s"] > 0 and line["steps_per_s"] > 0 for line in lines[:4])
    assert "not found in nowhere" in lines[4]["skipped"]


def test_bench_memory_measures_every_registered_allocator(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("bench", "memory", "--pages", "1100", "--steps", "10")
    machine, *lines = (json.loads(line) for line in call(capsys, *small, "--json")[1].splitlines())
    assert machine["loop_ns_per_iteration"] > 0
    assert [line["allocator"] for line in lines] == names("allocators")
    by_name = {line["allocator"]: line for line in lines}
    assert all(line["reserve_ns_per_page"] > 0 and line["steady_p50_us"] > 0 for line in lines)
    assert by_name["prefix"]["publish_ns_per_page"] > 0 < by_name["prefix"]["evict_ns_per_page"]
    assert by_name["prefix"]["lookup_us"] > 0 < by_name["prefix"]["lookup_half_us"]
    assert by_name["paged"]["lookup_us"] is by_name["contiguous"]["grow_ns_per_page"] is None
    assert by_name["paged"]["fragmentation"] < by_name["contiguous"]["fragmentation"] < 1
    table = call(capsys, *small, "--allocator", "paged")[1]
    assert "grow by one page" in table
    assert "contiguous" not in table


@pytest.mark.parametrize(
    "command",
    [
        ["sim", "--set", "workload.limit=5", "--journal", "{}/run.jsonl"],
        ["sim", "--set", "workload.limit=5", "--csv", "{}/run.csv"],
        ["workload", "describe", "--limit", "5", "--out", "{}/p.png"],
        ["demo", "--limit", "5", "--picture", "{}/p.png"],
    ],
)
def test_a_file_is_not_written_into_a_folder_that_is_not_there(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "nonexist" / "x"
    status, out, told = call(capsys, *(each.format(missing) for each in command))
    assert status == 2
    assert f"there is no folder {missing}" in told.replace("\n", "")
    assert out == ""
    assert not missing.parent.exists()


def test_demo_compares_policies_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "demo.png"
    status, out, _ = call(capsys, "demo", "--limit", "60", "--picture", picture)
    assert status == 0
    assert ["chat-batch", "fcfs", "static", "swap"] in told(out)
    assert str(picture) in out.replace("\n", "")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_demo_without_matplotlib_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.cli.demo.can_draw", lambda: False)
    status, out, _ = call(capsys, "demo", "--limit", "20", "--picture", tmp_path / "x.png")
    assert status == 0
    assert "pip install 'stepwell[research]'" in out
    assert not (tmp_path / "x.png").exists()


def test_the_best_of_a_row_is_marked_for_a_person_at_a_terminal(hand: Path) -> None:
    to = Console(file=io.StringIO(), force_terminal=True, width=80, color_system="standard", _environ={})
    runs = [simulate(hand, overrides=[f"scheduler.policy={name}"]).summary for name in ("fcfs", "static")]
    print_runs(runs, to)
    shown = to.file.getvalue()  # type: ignore[attr-defined]
    (row,) = [line for line in shown.splitlines() if "TTFT p99" in line]
    best = min(run.all.ttft_ms.p99 or 0.0 for run in runs)
    assert re.search(rf"\x1b\[1;32m +{re.escape(time_of(best))}", row)
    assert row.count("\x1b[1;32m") == 1
