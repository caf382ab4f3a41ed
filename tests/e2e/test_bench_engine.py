"""``stepwell bench engine`` from end to end, on the model that needs nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepwell.cli.load_requests import lengths
from stepwell.tests.cli.hand import call
from stepwell.tests.e2e.serving import PATIENCE_S, serving

FIELDS = ["engine", "precision", "workload", "tokens_per_s", "ttft_p50_ms", "itl_p50_ms", "itl_p99_ms"]


def bench(*arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    command = [sys.executable, "-m", "stepwell", "bench", "engine", "--model", "echo", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_server_of_its_own() -> None:
    some = ("--requests", "6", "--workload", "prefill-512", "--workload", "concurrency-64", "--runs", "2")
    fast = "cost.options={base_ns=500000,prefill_token_ns=0,decode_request_ns=0,kv_token_ps=0,swap_page_ns=0}"
    status, (machine, prefill, crowd), err = bench(*some, "--set", fast)
    assert (status, err) == (0, "")
    assert machine["loop_ns_per_iteration"] > 0
    for line in (prefill, crowd):
        assert [name for name in line if name in FIELDS] == FIELDS
        assert line["tokens_per_s"] > 0
        assert line["ttft_p50_ms"] > 0
        assert line["loop_ns"] > 0
        assert line["runs"] == len(line["tokens_per_s_runs"]) == 2
    assert (prefill["workload"], prefill["itl_p50_ms"], prefill["prompt_tokens"]) == ("prefill 512", None, 2560)
    assert (crowd["workload"], crowd["requests"]) == ("concurrency 64", 6)
    assert crowd["itl_p50_ms"] <= crowd["itl_p99_ms"]


def bench_here(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """The same in this process, and without finding out what the machine could do at best."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stepwell.cli.bench_engine.ceilings", dict)
        status, out, err = call(capsys, "bench", "engine", "--model", "echo", "--json", *arguments)
    return status, [json.loads(line) for line in out.splitlines()], err


def test_a_journal_of_it_tells_what_steps_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, (_, line), _ = bench_here(
        capsys, "--journal", str(tmp_path), "--requests", "4", "--workload", "concurrency-16"
    )
    assert status == 0
    (journal,) = tmp_path.glob("*.jsonl")
    command = [sys.executable, "-m", "stepwell", "replay", str(journal), "--backend", "echo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
    *rows, total = map(json.loads, done.stdout.splitlines())
    assert total["steps"] >= max(output for _, output in lengths(line["requests"]))
    assert total["ratio"] == total["ratio_to_recorded"] == 1.0
    assert all(row["recorded_p50_ms"] == row["measured_p50_ms"] for row in rows)


def test_a_server_that_runs_already_and_answers_short(capsys: pytest.CaptureFixture[str]) -> None:
    with serving("--set", "scheduler.max_context=520") as server:
        some = ("--requests", "8", "--workload", "concurrency-16", "--engine", "theirs", "--precision", "int3")
        status, (_, line), _ = bench_here(capsys, "--url", server.url, *some)
        assert status == 1
        assert (line["engine"], line["precision"]) == ("theirs", "int3")
        assert line["wrong"][0].endswith("answers")
        assert "tokens, got" in line["wrong"][1]
        assert server.process.poll() is None


def test_the_host_path_is_a_row_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("stepwell.cli.bench_engine.HOST_STREAMS", 8)
    status, out, _ = call(capsys, "bench", "engine", "--workload", "host-path", "--json")
    _, line = map(json.loads, out.splitlines())
    assert status == 0
    assert [name for name in line if name in FIELDS] == FIELDS
    assert line["workload"] == "host path, 8 streams"
    assert 0 < line["step_p50_us"] <= line["step_p99_us"]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks for the server in /proc")
def test_its_server_ends_with_it() -> None:
    slow = "cost.options={base_ns=500000000,prefill_token_ns=0,decode_request_ns=0,kv_token_ps=0,swap_page_ns=0}"
    command = [sys.executable, "-m", "stepwell", "bench", "engine", "--model", "echo", "--set", slow]
    command += ["--set", "server.drain_s=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert any(line.startswith("workload") for line in process.stdout)
            (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            process.terminate()
            assert process.wait(PATIENCE_S) == 143
        finally:
            process.kill()
    assert not Path(f"/proc/{child}").exists()


def test_a_server_that_does_not_start(capfd: pytest.CaptureFixture[str]) -> None:
    status, lines, err = bench_here(capfd, "--set", "memory.pags=1")
    assert (status, len(lines)) == (2, 1)
    assert "did you mean 'pages'" in err
    assert "the server did not start (exit status 2)" in err
