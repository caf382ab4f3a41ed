"""Cost models fitted to measured steps: the least squares against their own laws, fits against known machines, the
command from a live engine's journal to a configuration that a simulation takes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stepwell.core.config import CostConfig
from stepwell.core.errors import UserError
from stepwell.core.journal import decode_header, encode_header
from stepwell.core.protocols import BatchShape, CostModel
from stepwell.core.registry import make_cost_model
from stepwell.sim.backend import EchoBackend
from stepwell.sim.calibration.calibrate import FEWEST, calibrate
from stepwell.sim.calibration.columns import TELLING
from stepwell.sim.calibration.fits import FITS
from stepwell.sim.calibration.least_squares import nonnegative, robust
from stepwell.sim.calibration.measured import imaginary, measured_steps
from stepwell.sim.cost.curve import Curve
from stepwell.sim.cost.linear import COEFFICIENTS, Linear
from stepwell.sim.cost.reach import Reach
from stepwell.sim.execute import execute
from stepwell.sim.extrapolation import Extrapolation
from stepwell.sim.step_reader import MeasuredStep
from stepwell.tests.cli.hand import call, scenario
from stepwell.tests.core.journals import RotateEvery, record
from stepwell.tests.core.shells import ODD, Case, fixed_case, live

FIELDS = BatchShape.__struct_fields__


def as_live(path: Path) -> Path:
    """A journal that says that a device took its times."""
    head, *rest = path.read_bytes().splitlines(keepends=True)
    header = msgspec.structs.replace(decode_header(head, name="it"), shell="engine")
    path.write_bytes(b"".join([encode_header(header), *rest]))
    return path


# ------------------------------------------------------------------------------------------------ least squares

numbers = st.floats(-100, 100, allow_nan=False, width=32)


@given(st.integers(1, 4).flatmap(lambda p: arrays.arrays(np.float64, (12, p + 1), elements=numbers)))
def test_least_squares_stand_where_no_step_is_worth_while(drawn: Any) -> None:
    """Karush, Kuhn and Tucker: no coefficient is negative, one that is positive gains nothing by moving, one at zero
    nothing by growing."""
    matrix, target = drawn[:, :-1], drawn[:, -1]
    found = nonnegative(matrix, target)
    assert (found >= 0).all()
    slope = matrix.T @ (target - matrix @ found)
    scale = np.abs(matrix).max() * np.abs(target).max() * 12 + 1.0
    assert (slope <= 1e-7 * scale).all()
    assert np.abs(slope[found > 0]).max(initial=0.0) <= 1e-7 * scale


def test_a_step_that_was_held_up_does_not_bend_the_fit() -> None:
    draw = random.Random(1)
    matrix = np.array([[1.0, draw.randint(1, 64)] for _ in range(300)])
    times = matrix @ [5e6, 2e5] * [draw.uniform(0.98, 1.02) for _ in range(300)]
    clean = robust(matrix, times)
    times[::50] *= 40
    assert robust(matrix, times) == pytest.approx(clean, rel=0.15)
    assert clean == pytest.approx([5e6, 2e5], rel=0.02)


def test_predictions_add_up_to_what_was_measured() -> None:
    """Where times scatter to one side only, the fit goes through their mean and not through the middle."""
    draw = random.Random(2)
    matrix = np.array([[1.0, draw.randint(1, 64)] for _ in range(2000)])
    times = matrix @ [5e6, 2e5] * [1 + draw.expovariate(10) for _ in range(2000)]
    assert (matrix @ robust(matrix, times)).sum() == pytest.approx(times.sum(), rel=1e-6)


# ------------------------------------------------------------------------------------------------ fits


def steps_of(cost: CostModel, count: int = 400, noise: float = 0.0, seed: int = 0) -> list[MeasuredStep]:
    draw = random.Random(seed)
    steps = []
    for _ in range(count):
        prefill, decode = draw.choice((0, 0, draw.randint(1, 200))), draw.randint(0, 32)
        requests = draw.randint(1, min(prefill, 3)) if prefill else 0
        shape = BatchShape(
            prefill,
            decode,
            decode * draw.randint(1, 300),
            draw.choice((0, 0, 0, draw.randint(1, 20))),
            requests,
            0,
            prefill * (prefill + 1) // 2,
        )
        took_ns = cost.step_ns(shape)
        steps.append(MeasuredStep(shape, round(took_ns * draw.uniform(1 - noise, 1 + noise)), took_ns))
    return [step for step in steps if step.shape.prefill_tokens or step.shape.decode_requests]


TRUE = Linear.Options(
    base_ns=4_000_000,
    prefill_token_ns=300_000,
    prefill_request_ns=50_000,
    decode_request_ns=700_000,
    kv_token_ps=900_000,
)


def test_a_linear_machine_is_found_again() -> None:
    found = calibrate(steps_of(Linear(TRUE)), model="linear")
    options = found.cost.options
    for name in COEFFICIENTS:
        if name != "copy_page_ns":
            assert options[name] == pytest.approx(getattr(TRUE, name), rel=1e-3, abs=2), name
    assert found.assumed == ["copy_page_ns"]
    assert options["copy_page_ns"] == Linear.Options().copy_page_ns
    assert found.errors.p99 < 1e-4
    assert found.errors.steps + found.fitted == len(steps_of(Linear(TRUE)))


def test_a_machine_that_bends_is_found_by_the_curve_and_not_by_the_line() -> None:
    machine = Curve(
        Curve.Options(
            rows_ns=((1, 30_000_000), (16, 34_000_000), (64, 150_000_000), (232, 700_000_000)),
            decode_ns=((0, 0), (1, 1_000_000), (2, 9_000_000), (32, 12_000_000)),
            kv_token_ps=5_000_000,
            prefill_pair_ps=300_000,
        )
    )
    steps = steps_of(machine, 1500, noise=0.01)
    curve, line = calibrate(steps, model="curve"), calibrate(steps, model="linear")
    assert curve.errors.p90 < 0.015 < 0.05 < line.errors.p90
    assert abs(curve.errors.bias) < 0.005


@pytest.mark.parametrize("model", list(FITS))
def test_si_5_what_was_fitted_is_positive_and_never_falls(model: str) -> None:
    """From noise: batches of 0, 1, the most and twice that, ten times the KV; and what lies beyond is flagged."""
    steps = steps_of(Linear(TRUE), 300, noise=0.6)
    found = calibrate(steps, model=model, seed=3)
    assert found.fitted == pytest.approx(0.8 * len(steps), abs=1)
    cost: Any = make_cost_model(found.cost)
    most = {name: max(getattr(each.shape, name) for each in steps) for name in FIELDS}
    for name in FIELDS:
        before = 0
        for count in (0, 1, most[name] // 2, most[name], 2 * most[name], 10 * most[name] + 1):
            shape = msgspec.structs.replace(BatchShape(**{each: most[each] // 2 for each in FIELDS}), **{name: count})
            took_ns = cost.step_ns(shape)
            assert type(took_ns) is int
            assert took_ns > 0
            assert took_ns >= before
            before = took_ns
        beyond = msgspec.structs.replace(steps[0].shape, **{name: 2 * most[name] + 1})
        assert not cost.reach.covers(beyond)
        assert name in cost.reach.outside(beyond)
    assert cost.reach.error_p90 == pytest.approx(found.errors.p90, abs=1e-6)


@pytest.mark.parametrize("model", list(FITS))
def test_shapes_that_are_all_alike_are_fitted_too(model: str) -> None:
    """Nothing can be told apart then, and what was measured is predicted all the same."""
    steps = [MeasuredStep(BatchShape(0, 8, 100), 20_000_000, 19_000_000)] * 40
    found = calibrate(steps, model=model)
    assert make_cost_model(found.cost).step_ns(BatchShape(0, 8, 100)) == pytest.approx(20_000_000, rel=1e-5)
    assert found.errors.p99 < 1e-5


def test_the_same_seed_holds_out_the_same_steps() -> None:
    steps = steps_of(Linear(TRUE), 200, noise=0.1)
    assert calibrate(steps, seed=1) == calibrate(steps, seed=1)
    assert calibrate(steps, seed=1).cost != calibrate(steps, seed=2).cost


@pytest.mark.parametrize("model", ["curve", "linear"])
def test_a_coefficient_that_few_steps_tell_of_keeps_its_default(model: str) -> None:
    """Copies of pages in a handful of steps, which were held up by something else: what a copy takes is not learnt."""
    plain = [each for each in steps_of(Linear(TRUE), 300) if not each.shape.swap_pages]
    odd = [MeasuredStep(BatchShape(0, 8, 100, 2), 900_000_000, 900_000_000)] * (TELLING // 2)
    found = calibrate([*plain, *odd], model=model)
    default: Any = {"curve": Curve, "linear": Linear}[model]
    assert 0 < found.evidence["swap_page_ns"] <= TELLING // 2
    assert "swap_page_ns" in found.assumed
    assert found.cost.options["swap_page_ns"] == default.Options().swap_page_ns
    assert "kv_token_ps" not in found.assumed
    assert found.evidence["kv_token_ps"] >= TELLING


def test_what_is_assumed_is_not_fitted_twice() -> None:
    """A machine that is the default in everything is found whole, whatever few steps tell of."""
    default = Linear(Linear.Options())
    steps = [each for each in steps_of(default, 300) if not each.shape.swap_pages]
    swaps = [each for each in steps_of(default, 300, seed=1) if each.shape.swap_pages][: TELLING // 2]
    assert calibrate([*steps, *swaps], model="linear").errors.p99 < 1e-3


def test_too_few_steps_and_unknown_models_are_refused() -> None:
    with pytest.raises(UserError, match=f"needs {FEWEST}"):
        calibrate(steps_of(Linear(TRUE))[: FEWEST - 1])
    with pytest.raises(UserError, match="linear"):
        calibrate(steps_of(Linear(TRUE)), model="magic")


# ------------------------------------------------------------------------------------------------ the curve


@given(
    points=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 10**6)), min_size=1, max_size=6),
    first=st.tuples(st.integers(0, 9), st.integers(1, 10**7)),
    pair_ps=st.integers(0, 10**6),
    kv_ps=st.integers(0, 10**6),
    shape=st.builds(BatchShape, **dict.fromkeys(FIELDS, st.integers(0, 10**5))),
    name=st.sampled_from(FIELDS),
    more=st.integers(1, 10**5),
    steps=st.integers(1, 40),
)
@settings(max_examples=100)
def test_si_5_a_curve_rises_and_its_runs_are_its_steps(
    points: list[tuple[int, int]],
    first: tuple[int, int],
    pair_ps: int,
    kv_ps: int,
    shape: BatchShape,
    name: str,
    more: int,
    steps: int,
) -> None:
    told = [first]
    for rows, time_ns in points:
        told.append((told[-1][0] + rows, told[-1][1] + time_ns))
    decode = ((0, 0), (3, 5), (9, 5), (20, 10_000))
    model = Curve(Curve.Options(rows_ns=tuple(told), prefill_pair_ps=pair_ps, kv_token_ps=kv_ps, decode_ns=decode))
    larger = msgspec.structs.replace(shape, **{name: getattr(shape, name) + more})
    assert 0 < model.step_ns(shape) <= model.step_ns(larger)
    for rows, time_ns in told:
        if rows:
            assert model.step_ns(BatchShape(rows)) == time_ns
    assert model.step_ns(BatchShape(0, 6)) == model.step_ns(BatchShape(6)) + 5
    now_ns, ends, step = 7, [], msgspec.structs.replace(shape)
    for _ in range(steps):
        now_ns += model.step_ns(step)
        ends.append(now_ns)
        step.kv_tokens += step.decode_requests
    assert model.run_ns(shape, 7, steps, 1 << 62) == ends
    assert model.run_ns(shape, 7, steps, ends[0]) == ends[:1]


@pytest.mark.parametrize("points", [(), ((1, 0),), ((2, 5), (2, 6)), ((1, 5), (3, 4)), ((-1, 5),)])
def test_a_curve_that_falls_is_refused(points: Any) -> None:
    with pytest.raises(UserError, match="rows_ns"):
        Curve(Curve.Options(rows_ns=points))
    if points != ((1, 0),):  # decoding may add nothing
        with pytest.raises(UserError, match="decode_ns"):
            Curve(Curve.Options(decode_ns=points))


# ------------------------------------------------------------------------------------------------ journals


@pytest.mark.parametrize("policy", ["fcfs", "swap"])
@pytest.mark.parametrize("seed", range(8))
def test_the_steps_of_a_journal_are_those_that_its_plans_come_to(seed: int, policy: str, tmp_path: Path) -> None:
    """Up to three in flight, swaps, cancels, failures: the shapes that executing the plans finds, and as the virtual
    device does nothing else meanwhile, a step's period is what it took."""
    case, path = fixed_case(seed, policy, "paged"), tmp_path / "run.jsonl"
    record(case, path)
    times = execute(path, EchoBackend(cost=Linear(ODD)), Linear(ODD), vocabulary=50).steps
    steps = measured_steps(as_live(path))
    assert len(steps) > 15
    if not case.faults:  # what a failed step took is no step's period
        assert [each.period_ns for each in steps] == [each.predicted_ns for each in times]
    assert [(each.shape.prefill_tokens, each.shape.decode_requests, each.shape.kv_tokens) for each in steps] == [
        (each.shape.prefill_tokens, each.shape.decode_requests, each.shape.kv_tokens) for each in times
    ]


def test_waiting_for_work_is_no_part_of_a_step(tmp_path: Path) -> None:
    """Two requests an hour apart, through the live engine in virtual time."""
    case = fixed_case(1, "fcfs", "paged")
    apart = [
        msgspec.structs.replace(each, arrival_ns=at * 3600 * 10**9, cancel_ns=0)
        for at, each in enumerate(case.requests)
    ]
    case = Case(tuple(apart[:2]), cost=ODD)
    path = as_live(live(case).write(tmp_path / "run.jsonl"))
    steps = measured_steps(path)
    assert [each.period_ns for each in steps] == [each.elapsed_ns for each in steps]
    assert max(each.period_ns for each in steps) < 1000


def test_a_journal_that_begins_late_counts_from_when_all_is_known(tmp_path: Path) -> None:
    case, path = fixed_case(5, "swap", "paged"), tmp_path / "run.jsonl"
    record(case, path, beside=[RotateEvery(4)])
    whole = measured_steps(as_live(path))
    path.unlink()
    part = measured_steps(next(iter(sorted(tmp_path.glob("run.*.jsonl")))))
    assert 0 < len(part) < len(whole)
    assert part == whole[-len(part) :]


def test_a_simulated_journal_teaches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = tmp_path / "run.jsonl"
    assert call(capsys, "sim", scenario(tmp_path), "--journal", journal)[0] == 0
    status, _, told = call(capsys, "calibrate", journal)
    assert status == 2
    assert "predictions" in told


@pytest.mark.parametrize("model", ["echo", "costmodel"])
def test_journals_of_models_that_are_not_there_are_refused(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, cost = tmp_path / "live.jsonl", tmp_path / "cost.toml"
    record(fixed_case(2, "swap", "paged"), journal)
    as_live(journal)
    head, *rest = journal.read_bytes().splitlines(keepends=True)
    header = decode_header(head, name="it")
    header.config["model"] = {"path": model}
    journal.write_bytes(b"".join([encode_header(header), *rest]))
    status, _, told = call(capsys, "calibrate", journal, "--out", cost)
    assert status == 2
    assert model in told
    assert not cost.exists()
    status, _, told = call(capsys, "calibrate", journal, "--out", cost, "--imaginary")
    assert status == 0
    assert "warning: prefill_pair_ps keeps its default: 13 fitted steps had any, and 30 are needed" in told


def test_a_real_model_is_no_imaginary_one(tmp_path: Path) -> None:
    journal = tmp_path / "live.jsonl"
    record(fixed_case(2, "swap", "paged"), journal)
    head, *rest = as_live(journal).read_bytes().splitlines(keepends=True)
    header = decode_header(head, name="it")
    header.config["model"] = {"path": "smollm2"}
    journal.write_bytes(b"".join([encode_header(header), *rest]))
    assert imaginary(journal) == ""


def test_from_a_live_journal_to_a_simulation_that_says_how_far_it_can_be_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, cost, simulated = tmp_path / "live.jsonl", tmp_path / "cost.toml", tmp_path / "sim.jsonl"
    record(fixed_case(2, "swap", "paged"), journal)
    as_live(journal)
    status, told, _ = call(capsys, "calibrate", journal, "--out", cost, "--model", "linear", "--imaginary")
    assert status == 0
    assert "held out" in told
    status, told, _ = call(capsys, "sim", cost, "--set", "workload.limit=40", "--journal", simulated, "--json")
    assert status == 0
    summary = msgspec.json.decode(told)["summary"]
    assert summary["step_times"] == "predicted"
    assert summary["extrapolated_share"] > 0.9, "the built-in workload is far larger than the one that was measured"
    status, told, _ = call(capsys, "journal", "stat", simulated, "--json")
    assert msgspec.json.decode(told)["summary"] == summary, "a run, and a journal of it"
    assert "beyond" in call(capsys, "sim", cost, "--set", "workload.limit=40")[1]
    assert "estimated" in call(capsys, "sim", "--set", "workload.limit=40")[1]
    status, told, _ = call(capsys, "journal", "stat", journal)
    assert "measured" in told
    whole = tmp_path / "cost.json"
    assert call(capsys, "calibrate", journal, "--out", whole, "--imaginary")[0] == 0
    assert msgspec.convert(msgspec.json.decode(whole.read_bytes())["cost"], CostConfig).model == "curve"


# ------------------------------------------------------------------------------------------------ extrapolation


@given(
    bounds=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    decode=st.integers(0, 7),
    kv=st.integers(0, 80),
    count=st.integers(1, 30),
    prefill=st.integers(0, 3),
)
def test_a_run_counts_as_its_steps_one_by_one(
    bounds: tuple[int, int], decode: int, kv: int, count: int, prefill: int
) -> None:
    reach = Reach(kv_tokens=(min(bounds), max(bounds)), decode_requests=(0, 5), prefill_tokens=(0, 2))
    at_once, singly = Extrapolation(reach), Extrapolation(reach)
    shape = BatchShape(prefill, decode, kv)
    at_once.run(shape, count)
    for step in range(count):
        singly.step(BatchShape(prefill, decode, kv + step * decode))
    assert (at_once.steps, at_once.outside) == (singly.steps, singly.outside)
