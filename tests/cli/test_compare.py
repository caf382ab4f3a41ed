"""``stepwell compare`` as a person types it: tables, files, refusals, a run that fails, an interrupt."""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepwell.cli.progress import Bars
from stepwell.core.errors import UserError
from stepwell.sim import report
from stepwell.sim.compare.result import from_json, read
from stepwell.sim.compare.run import compare
from stepwell.tests.cli.hand import call

SCENARIO = """\
[scheduler]
max_context = 4096
[memory]
pages = 1500
[workload.settings]
count = 60
[compare]
policies = ["fcfs", "chat-batch"]
rates = [100.0]
seeds = 2
"""


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "dumb")


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    file = tmp_path / "s.toml"
    file.write_text(SCENARIO)
    return file


def test_tables(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "compare", scenario, "--jobs", 1, "--slo-share", 0.5)
    assert (status, err) == (0, "")
    found = compare(scenario, slo_share=0.5, jobs=1)
    (row,) = [
        each for each in found.rows if (each.contender, each.scope, each.metric) == ("fcfs", "all", "slo_attainment")
    ]
    assert row.low is not None
    lines = [line.split() for line in out.splitlines()]
    (first,) = [line for line in lines if line[:1] == ["fcfs"] and "%" in line]
    assert first[1:4] == [f"{100 * row.mean:.1f}", f"±{100 * (row.mean - row.low):.1f}", "%"]
    for words in ("100/s", "by TTFT p99:", "highest rate at which 50 % meet", "paired difference", "over 2 seeds"):
        assert words in out
    assert "▲" in out or "▼" in out or "=" in out


def test_a_scope_and_metrics_may_be_chosen(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("compare", scenario, "--jobs", 1, "--scope", "tenant:heavy", "--metric", "service_share")
    status, out, _ = call(capsys, *argv)
    assert status == 0
    assert "share of the service" in out
    assert "tenant heavy" in out
    for more, says in (
        (("--scope", "chatt"), "did you mean 'chat'?"),
        (("--metric", "ttft_p99"), "did you mean 'ttft_p99_ms'?"),
    ):
        status, _, err = call(capsys, "compare", scenario, "--jobs", 1, *more)
        assert (status, says in err, len(err.splitlines())) == (2, True, 1)


def test_means_as_csv(scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, told, err = call(capsys, "compare", scenario, "--jobs", 1, "--json", "--csv", tmp_path / "x.csv")
    assert (status, err) == (0, "")
    found = from_json(told.encode())
    rows = list(csv.DictReader((tmp_path / "x.csv").read_text().splitlines()))
    assert [float(each["mean"]) for each in rows] == [each.mean for each in found.rows]


def test_a_report_that_cannot_be_written_costs_no_tables_nor_a_wrong_scope_the_files(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise UserError("no space left", field="report")

    argv = ("compare", scenario, "--jobs", 1, "--csv", tmp_path / "x.csv")
    assert call(capsys, *argv, "--scope", "chatt")[0] == 2
    assert "chat-batch" in (tmp_path / "x.csv").read_text()
    monkeypatch.setattr(report, "write", full)
    status, out, err = call(capsys, *argv, "--out", tmp_path / "out")
    assert (status, "no space left" in err) == (2, True)
    assert "by TTFT p99:" in out


@pytest.mark.slow
def test_everything_is_written_to_a_folder_and_read_back(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    polars = pytest.importorskip("polars", reason="data frames: pip install 'stepwell[research]'")
    out = tmp_path / "out"
    argv = (
        "compare",
        scenario,
        "--jobs",
        1,
        "--json",
        "--csv",
        tmp_path / "x.csv",
        "--parquet",
        tmp_path / "x.parquet",
    )
    status, told, err = call(capsys, *argv, "--out", out)
    assert (status, err) == (0, f"the report is {out / 'report.html'}\n")
    assert (out / "report.html").exists()
    found = read(out / "comparison.json")
    assert (out / "comparison.json").read_text() == told
    rows = list(csv.DictReader((tmp_path / "x.csv").read_text().splitlines()))
    assert len(rows) == len(found.rows)
    assert [float(each["mean"]) for each in rows] == [each.mean for each in found.rows]
    assert (out / "rows.csv").read_text() == (tmp_path / "x.csv").read_text()
    frame = polars.read_parquet(tmp_path / "x.parquet")
    assert frame.equals(found.frame())
    assert frame["mean"].to_list() == [each.mean for each in found.rows]
    for table in ("rows", "differences", "runs", "rankings", "knees", "curves"):
        assert polars.read_parquet(out / f"{table}.parquet").equals(found.frame(table))
    runs = found.frame("runs").filter(polars.col("scope") == "all")
    assert runs["ttft_p99_ms"].to_list() == [each.summary.all.ttft_ms.p99 for each in found.cells]
    assert compare(scenario, jobs=1, folder=out) == found, "from kept runs"


def test_what_is_asked_on_the_command_line_replaces_the_table(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("compare", scenario, "--jobs", 1, "--json", "--policy", "swap", "--load", 0.5, "--seeds", 1, "--limit", 20)
    found = json.loads(call(capsys, *argv)[1])
    assert [each["label"] for each in found["axes"]["contenders"]] == ["swap"]
    assert [each["load"] for each in found["axes"]["points"]] == [0.5]
    assert found["workloads"][0]["requests"] == 20


def test_a_run_that_fails(scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rogue.py"
    file.write_text(
        "from stepwell.core.plan import StepPlan\nfrom stepwell.policies.fcfs import Fcfs\n"
        "class Rogue(Fcfs):\n    def plan(self, view):\n        return StepPlan(admit=[(999, 1)])\n"
    )
    argv = ("compare", scenario, "--jobs", 1, "--policy", "fcfs", "--policy", f"{file}:Rogue", "--seeds", 1)
    status, out, err = call(capsys, *argv)
    assert status == 1
    assert "fcfs" in out
    assert "stepwell: failed: Rogue, 100/s, seed 1: PolicyError" in err
    assert f"  repeat it with: stepwell sim {scenario} --set scheduler.policy={file}:Rogue" in err


def test_config_check_reads_the_table_too(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "config", "check", scenario)[0] == 0
    scenario.write_text(SCENARIO.replace("seeds", "seed"))
    status, _, err = call(capsys, "config", "check", scenario)
    assert status == 2
    assert "compare.seed: unknown key 'seed'" in err
    assert "did you mean 'seeds'?" in err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_who_waits_sees_what_is_done_and_how_long_it_will_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    monkeypatch.setattr("stepwell.cli.progress.PATIENCE_S", 0.0)
    with Bars() as bars:
        bars("measuring", 0, 1)
        bars("measuring", 1, 1)
        for done in range(4):
            bars("simulating", done, 4)
            time.sleep(0.02)
    shown = terminal.getvalue()
    assert "measuring" in shown
    assert "75%" in shown.partition("simulating")[2]
    assert re.search(r"\d:\d\d:\d\d", shown)


@pytest.mark.slow
def test_an_interrupt_ends_every_process_and_what_is_done_is_kept(scenario: Path, tmp_path: Path) -> None:
    argv = ["compare", scenario, "--jobs", 2, "--seeds", 100, "--out", tmp_path / "out"]
    running = subprocess.Popen(
        [sys.executable, "-m", "stepwell", *map(str, argv)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        cells = tmp_path / "out" / "cells"
        until = time.monotonic() + 60
        while not (cells.exists() and len(list(cells.iterdir())) > 3) and time.monotonic() < until:
            time.sleep(0.05)
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(running.pid)], capture_output=True, text=True)
        workers = [int(each) for each in listed.stdout.split()]
        os.kill(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=60)
    finally:
        running.kill()
    assert (running.returncode, out, err) == (130, "", "stepwell: interrupted\n")
    assert len(workers) == 2
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
    assert len([each for each in cells.iterdir() if each.suffix == ".json"]) > 3
