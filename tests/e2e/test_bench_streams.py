"""``stepwell bench streams`` from end to end, small: real processes, and every token of every answer looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepwell.tests.backends.speaking import write_speaking_folder
from stepwell.tests.e2e.serving import PATIENCE_S

KEYS = ["users", "ttft_p50_s", "ttft_p99_s", "lost_tokens", "doubled_tokens", "loop_lag_p99_ms", "tokens_per_s"]


def bench(*arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    command = [sys.executable, "-m", "stepwell", "bench", "streams", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def looked_at(line: dict[str, Any]) -> None:
    """What holds of any run that went well."""
    assert [key for key in line if key in KEYS] == KEYS
    assert line["wrong"] == []
    assert (line["lost_tokens"], line["doubled_tokens"]) == (0, 0)
    assert line["asked"] == line["answered"] + sum(line["refused"].values())
    assert line["tokens_per_s"] > 0
    assert 0 < line["ttft_p50_s"] <= line["ttft_p99_s"]
    assert line["server_us_per_token"] > 0
    assert line["bytes_per_stream"] >= 0


def test_a_closed_loop() -> None:
    status, (machine, line), err = bench("--users", "60", "--think", "0.5", "--seconds", "2", "--tokens", "20")
    assert (status, err) == (0, "")
    assert machine["loop_ns_per_iteration"] > 0
    looked_at(line)
    assert line["answered"] == line["asked"] > 60, "users ask again"


def test_all_at_once_and_the_floor() -> None:
    status, (_, ours, floor), err = bench(
        "--users", "50", "--scenario", "beat", "--beat", "0.1", "--seconds", "1", "--floor"
    )
    assert (status, err) == (0, "")
    looked_at(ours)
    assert ours["streams_at_once"] == ours["answered"] == 50
    assert (floor["engine"], floor["answered"], floor["wrong"]) == ("bare starlette", 50, [])


def test_a_burst_is_served_or_refused_with_a_time_to_come_again() -> None:
    """With room for ten answers at once, who finds none is sent away; the others are served in the policy's order."""
    few = ("--set", "server.max_streams=10", "--set", "scheduler.running_limit=4", "--tokens", "60", "--within", "0.5")
    status, (_, line), err = bench("--users", "80", "--scenario", "burst", *few)
    assert (status, err) == (0, "")
    looked_at(line)
    assert line["overtaken"] == 0
    assert line["refused"] == {"too_many_streams": 80 - line["answered"]}
    assert line["retry_after_s"] >= 1


@pytest.mark.slow
def test_hs_1_clients_that_stop_reading_take_little_and_hold_nobody_up() -> None:
    """Some of them are dropped, as they take nothing for too long; everybody else gets every token."""
    timid = ("--set", "server.send_timeout_s=2", "--fill", "6", "--beat", "0.01", "--seconds", "1")
    status, (_, line), _ = bench("--users", "20", "--scenario", "stalled", "--stalled", "20", *timid)
    assert status == 0
    looked_at(line)
    assert line["answered"] == line["asked"] == 20
    assert line["slow_clients"] > 0
    assert line["bytes_per_stalled"] < 4 << 20
    assert line["itl_ratio"] > 0


def test_a_step_with_few_and_with_all() -> None:
    status, (_, line), err = bench("--users", "30", "--scenario", "steps", "--beat", "0.05", "--seconds", "1")
    assert (status, err) == (0, "")
    assert line["wrong"] == []
    assert line["first_step_ms"] > 40
    assert line["step_ms"] > 40
    assert line["tokens_per_piece"] >= 1


def test_a_step_of_another_model_alone_and_beside_a_crowd_in_line() -> None:
    few = ("--few", "2", "--tokens", "20", "--think", "2", "--model", "echo")
    status, (_, line), err = bench("--users", "20", "--scenario", "steps", *few)
    assert (status, err) == (0, "")
    assert line["wrong"] == []
    assert [each["crowd"] for each in line["rounds"]] == [0, 20, 0, 20]
    for each in line["rounds"]:
        assert 15 <= each["steps"] <= 19
        assert each["streams_open"] <= each["crowd"] + 2
        assert each["gap_p50_ms"] >= 0
        assert each["step_p50_ms"] >= each["device_p50_ms"] > 0
    assert line["step_p50_ratio"] > 0


@pytest.mark.slow
def test_a_step_of_a_real_model_whose_whole_batch_streams(tmp_path: Path) -> None:
    """Half over SSE and half over WebSockets, against one client who asks for all of it and streams nothing."""
    model = write_speaking_folder(tmp_path)
    few = ("--few", "20", "--tokens", "40", "--model", str(model))
    status, (_, line), err = bench("--users", "20", "--scenario", "steps", *few)
    assert (status, err) == (0, "")
    assert line["wrong"] == []
    assert [each["crowd"] for each in line["rounds"]] == [0, 20, 0, 20]
    assert all(each["streams_open"] <= 20 and 30 <= each["steps"] <= 39 for each in line["rounds"])


def test_ab_1_of_a_crowd_that_leaves_at_once_nothing_is_left_over() -> None:
    few = ("--few", "5", "--beat", "0.05", "--seconds", "1")
    status, (_, line), err = bench("--users", "30", "--scenario", "leave", *few)
    assert (status, err) == (0, "")
    assert line["wrong"] == [], "answers of those that left would be told here"
    assert line["asked"] == 30
    assert line["loop_lag_most_ms"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--users", "0"), "users: must be between 1"),
        (("--sse-share", "2"), "sse-share: must be between 0"),
        (("--model", "smollm2"), "only `steps`"),
        (("--model", "smollm2", "--scenario", "steps", "--policy", "vtc"), "policy: the crowd"),
        (("--floor",), "floor: is of the scenario `beat`"),
        (("--users", "900000"), "ulimit -Hn"),
    ],
)
def test_what_cannot_be_is_told(arguments: tuple[str, ...], said: str) -> None:
    status, lines, err = bench(*arguments)
    assert (status, lines) == (2, [])
    assert said in err
