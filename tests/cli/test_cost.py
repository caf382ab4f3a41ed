"""`stepwell cost`: what is predicted, what is known, and how far off it is."""

from __future__ import annotations

import json

import pytest

from stepwell.core.protocols import BatchShape
from stepwell.sim.cost.devices import DEVICES
from stepwell.sim.cost.linear import Linear
from stepwell.sim.cost.models import MODELS
from stepwell.sim.cost.published import PUBLISHED
from stepwell.sim.cost.roofline import Roofline
from stepwell.sim.cost.setup import RooflineOptions
from stepwell.tests.cli.hand import call

ROOFLINE = 'cost={model="roofline",options={device="H200",model="llama-3-70b",tensor_parallel=4}}'


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")


@pytest.mark.parametrize("what", [["show"], ["show", "--set", ROOFLINE], ["list"], ["check"]], ids=lambda it: it[0])
def test_eighty_columns_are_enough(what: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "cost", *what)
    assert (status, err) == (0, "")
    assert "…" not in out


def test_show_tells_what_bounds_a_step_and_what_room_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    cost = Roofline(RooflineOptions(device="H200", model="llama-3-70b", tensor_parallel=4))
    out = call(capsys, "cost", "show", "--set", ROOFLINE)[1]
    assert f"--set memory.pages={cost.room.pages} (of 16 tokens" in out
    assert "every step is an estimate" in out
    assert DEVICES["H200"].source in out
    rows = {line.split("  ")[0]: line for line in out.splitlines()}
    assert "linear, memory" in rows["1 × 512"]
    assert "attention, memory" in rows["256 × 4,096"]
    assert "linear, compute" in rows["8,192 + 0"]
    assert "no room" in rows["256 × 32,768"]


def test_show_as_json_is_the_model_itself(capsys: pytest.CaptureFixture[str]) -> None:
    cost = Roofline(RooflineOptions(device="H200", model="llama-3-70b", tensor_parallel=4))
    told = json.loads(call(capsys, "cost", "show", "--set", ROOFLINE, "--json")[1])
    assert told["memory"]["pages"] == cost.room.pages
    row = next(each for each in told["steps"] if (each["decode_requests"], each["context"]) == (128, 4096))
    assert row["ms"] == cost.step_ns(BatchShape(decode_requests=128, kv_tokens=128 * 4096)) / 1e6
    assert sum(row["parts_ms"].values()) == pytest.approx(row["ms"], rel=1e-6)
    weights = 2 * (MODELS["llama-3-70b"].linear_parameters + MODELS["llama-3-70b"].head_parameters) / 4
    assert row["bytes"] > weights + 128 * 4096 * 81_920
    assert row["operations"] > 2 * 128 * MODELS["llama-3-70b"].linear_parameters / 4


def test_show_flags_what_was_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    reach = "{decode_requests=[1,40],kv_tokens=[0,200000],error_p90=0.03,steps=900}"
    out = call(capsys, "cost", "show", "--set", f"cost.options={{base_ns=7,reach={reach}}}")[1]
    assert "measured: 900 steps, within 3.0% of nine in ten" in out
    rows = {line.split("  ")[0]: line for line in out.splitlines()}
    assert "beyond" in rows["128 × 512"]
    assert "beyond" in rows["512 + 0"]
    assert "beyond" not in rows["32 × 4,096"]
    assert str(Linear().reach) == "None"


def test_list_names_everything_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    out = call(capsys, "cost", "list")[1]
    sources = {it.name: it.source for it in DEVICES.values()} | {it.name: it.source for it in MODELS.values()}
    for name, source in sources.items():
        assert f"  {name}: {source}" in out
    told = json.loads(call(capsys, "cost", "list", "--json")[1])
    assert [each["name"] for each in told["devices"]] == list(DEVICES)
    assert {each["name"]: each["parameters"] for each in told["models"]} == {
        each.name: each.parameters for each in MODELS.values()
    }


def test_check_lists_every_published_point(capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(call(capsys, "cost", "check", "--json")[1])
    assert len(told) == len(PUBLISHED)
    assert sum(each["fitted"] for each in told) == 2
    out = call(capsys, "cost", "check")[1]
    assert out.count("[1]*") == 2
    assert all(each.source in out for each in PUBLISHED)


def test_a_model_that_does_not_fit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = call(capsys, "cost", "show", "--set", 'cost={model="roofline",options={model="llama-3-405b"}}')
    assert status == 2
    assert "cost.options.model: llama-3-405b does not fit" in err
    assert "tensor_parallel = 16 would do" in err
