"""``stepwell workload``: what a person sees of a workload, and the numbers behind it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell.core.errors import UserError
from stepwell.sim.workload.describe import BINS, MOST_NAMES, OTHERS, describe, headline
from stepwell.sim.workload.picture import draw_workload
from stepwell.sim.workload.request import TraceRequest, Workload
from stepwell.sim.workload.trace import FORMATS
from stepwell.tests.cli.hand import call

SECOND = 10**9
Say = Callable[..., str]


@pytest.fixture
def stepwell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    """What a command says on stdout, or on stderr if it is to refuse."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")

    def say(*argv: str, status: int = 0) -> str:
        ended, out, err = call(capsys, *argv)
        assert ended == status, err
        return err if status else out

    return say


def hand() -> Workload:
    """Ten requests a second apart; the last two share the prefix of the first."""
    made = [
        TraceRequest(at * SECOND, 1 << at % 4, 3, "batch" if at % 5 == 4 else "chat", f"t{at % 2}", keys=[at])
        for at in range(8)
    ]
    made.append(TraceRequest(8 * SECOND, 9, 50, keys=[0, 99], program="p", max_tokens=10))
    made.append(TraceRequest(9 * SECOND, 9, 50, keys=[0, 99], program="p", cancel_tokens=5))
    return Workload("hand", made, key_tokens=8, notes=["by hand"])


def test_the_numbers_by_hand() -> None:
    it = describe(hand())
    assert (it.requests, it.followers, it.cancelled, it.key_tokens) == (10, 0, 1, 8)
    assert it.shared_keys == 3 / 12
    assert it.prompt.counts == [2, 2, 2, 4]
    assert (it.prompt.mean, it.prompt.p50, it.prompt.least, it.prompt.most) == (4.8, 4, 1, 9)
    assert (it.output.mean, it.output.most) == ((8 * 3 + 10 + 5) / 10, 10)
    assert it.output_tokens_per_s == pytest.approx(39 / 9)
    assert [(each.name, each.requests) for each in it.classes] == [("chat", 9), ("batch", 1)]
    assert [(each.name, each.requests) for each in it.tenants] == [("t0", 4), ("t1", 4), ("default", 2)]
    assert (it.programs.programs, it.programs.requests, it.programs.mean, it.programs.most) == (1, 2, 2.0, 2)
    assert sum(it.over_time.requests) == 10
    assert len(it.over_time.requests) == BINS
    assert headline(it) == "hand: 10 requests over 9 s, 1 a second, CV of gaps 0.00, 25.0 % of prefix keys seen before"


def test_many_tenants_are_told_together_and_odd_workloads_have_numbers_too() -> None:
    many = describe(Workload("many", [TraceRequest(at, 1, 1, tenant=f"t{at % 40}") for at in range(400)]))
    assert len(many.tenants) == MOST_NAMES + 1
    assert (many.tenants[-1].name, many.tenants[-1].requests) == (OTHERS, 400 - 10 * MOST_NAMES)
    assert sum(each.share for each in many.tenants) == pytest.approx(1)
    one = describe(Workload("one", [TraceRequest(5, 3, 2)]))
    assert (one.prompt_tokens_per_s, one.profile.rate_per_s, sum(one.over_time.requests)) == (None, 0.0, 1)
    loop = describe(Workload("loop", [TraceRequest(0, 1, 1), TraceRequest(9, 1, 1), TraceRequest(9, 1, 1, after=(1,))]))
    assert (loop.followers, loop.prompt_tokens_per_s, sum(loop.over_time.requests)) == (1, None, 2)


def trace(tmp_path: Path) -> Path:
    rows = [f"{at / 4},{20 + at},{1 + at % 9},s{at % 3}" for at in range(100)]
    path = tmp_path / "trace.csv"
    path.write_text(
        "\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens,session_id", *rows, "99,0,1,", "99,5,0,"])
    )
    return path


def test_a_trace_is_drawn_in_the_terminal(tmp_path: Path, stepwell: Say) -> None:
    path = trace(tmp_path)
    refused = stepwell("workload", "describe", str(path), status=2)
    assert "line 102: no prompt tokens" in refused
    told = stepwell("workload", "describe", str(path), "--skip-bad")
    for word in (
        "100 requests over 24.8 s",
        "Requests a second over time",
        "█",
        "64–127",
        "p99",
        "class chat",
        "CV 0.00",
    ):
        assert word in told
    assert "3 with 100 requests, 33.3 each, at most 34" in told
    assert "102 rows, 100 used, 1 dropped, 1 refused" in told
    assert "line 102: refused: no prompt tokens" in told
    assert max(map(len, told.splitlines())) <= 80


def test_json_has_every_number_and_settings_hold(tmp_path: Path, stepwell: Say) -> None:
    path = str(trace(tmp_path))
    asked = ("--skip-bad", "--limit", "40", "--rate", "8", "--set", "workload.max_prompt=30", "--json")
    told = json.loads(stepwell("workload", "describe", path, *asked))
    assert (told["requests"], told["prompt"]["most"]) == (40, 30)
    assert told["profile"]["rate_per_s"] == pytest.approx(8)
    assert told["report"]["refused"] == 1
    scenario = tmp_path / "scenario.toml"
    scenario.write_text('[workload]\nkind = "common"\nlimit = 50\n')
    assert json.loads(stepwell("workload", "describe", str(scenario), "--json"))["requests"] == 50
    assert json.loads(stepwell("workload", "describe", "--limit", "30", "--json"))["name"] == "demo"


def test_texts_are_counted_by_a_tokenizer_if_one_is_given(tmp_path: Path, stepwell: Say) -> None:
    chat = {"id": "c", "conversations": [{"from": "human", "value": "x" * 40}, {"from": "gpt", "value": "y" * 20}]}
    path = tmp_path / "chats.json"
    path.write_text(json.dumps([chat] * 3))
    counted = json.loads(stepwell("workload", "describe", str(path), "--tokenizer", "echo", "--json"))
    guessed = json.loads(stepwell("workload", "describe", str(path), "--json"))
    assert (counted["prompt"]["mean"], guessed["prompt"]["mean"]) == (40, 10)
    assert any("letters were taken for a token" in note for note in guessed["notes"])
    refused = stepwell(
        "workload", "describe", str(trace(tmp_path)), "--format", "simple", "--tokenizer", "echo", status=2
    )
    assert "--tokenizer: counts the texts of a trace in the format 'sharegpt'" in refused


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_is_drawn(tmp_path: Path, stepwell: Say, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"workload.{suffix}"
    told = stepwell("workload", "describe", str(trace(tmp_path)), "--skip-bad", "--out", str(path))
    assert f"The picture is {path}" in told
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    if suffix == "svg":
        for title in ("Requests a second", "Prompt length: mean 70", "Gaps between arrivals", "Who sends them"):
            assert f"<!-- {title}" in content.decode()


def test_odd_workloads_have_pictures_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, requests in {
        "one": [TraceRequest(5, 3, 2)],
        "together": [TraceRequest(5, 3, 2)] * 3,
        "loop": [TraceRequest(0, 1, 1), TraceRequest(9, 1, 1), TraceRequest(9, 1, 1, after=(1,))],
        "hand": hand().requests,
    }.items():
        draw_workload(Workload(name, requests), tmp_path / f"{name}.svg")
        assert (tmp_path / f"{name}.svg").stat().st_size > 5_000
    with pytest.raises(UserError, match=r"must end in \.png or \.svg, not '\.gif'"):
        draw_workload(hand(), tmp_path / "x.gif")


def test_formats_are_listed_with_their_settings(stepwell: Say) -> None:
    told = stepwell("workload", "formats")
    assert all(f"\n{name} " in f"\n{told}" for name in FORMATS)
    assert "settings: seed, dataset" in told


def test_a_simulation_counts_bad_rows_if_asked(tmp_path: Path, stepwell: Say) -> None:
    path = str(trace(tmp_path))
    assert "line 102: no prompt tokens" in stepwell("sim", "--trace", path, status=2)
    assert "102 rows, 100 used, 1 dropped, 1 refused" in stepwell("sim", "--trace", path, "--skip-bad")
