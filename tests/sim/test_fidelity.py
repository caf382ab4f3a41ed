"""Predicted against real: scripted ends, agreement, ordering, the report's arithmetic, and the whole command."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.clock import VirtualClock, run_virtual
from stepwell.core.engine import Engine
from stepwell.core.errors import UserError
from stepwell.core.placement import as_place
from stepwell.core.sampling import SamplingParams
from stepwell.sim.backend import EchoBackend
from stepwell.sim.cost.linear import Linear
from stepwell.sim.fidelity.agreement import agreement, common
from stepwell.sim.fidelity.ends import EndsAt
from stepwell.sim.fidelity.observed import METRICS, Decision, Observed
from stepwell.sim.fidelity.ordering import ordering
from stepwell.sim.fidelity.study import Cell, Study, check, config_of, fit_cells, in_order, predicted_cells, workload_of
from stepwell.tests.backends.tiny import write_folder
from stepwell.tests.cli.hand import call
from stepwell.tests.core.shells import Case, Recorder, fixed_case, prompt_of, simulated

ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


def scripted(case: Case) -> bytes:
    """The case through the live engine in virtual time, on a model that would never stop by itself."""
    scheduler = case.build()
    recorder = Recorder(case.config(), scheduler)
    lengths = {id: each.output_tokens for id, each in enumerate(case.requests, 1)}
    place = EndsAt(as_place(EchoBackend(cost=Linear(case.cost))), lengths)

    async def main() -> None:
        clock = VirtualClock()
        engine = Engine(scheduler, place, clock, observers=[recorder])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run)
            for id, each in enumerate(case.requests, 1):
                await clock.sleep_until(each.arrival_ns)
                engine.submit(
                    prompt_of(id, each.prompt_tokens),
                    case.max_tokens,
                    klass=each.klass,
                    tenant=each.tenant,
                    priority=each.priority,
                    program=each.program,
                    sampling=ENDLESS,
                )
            await engine.drained()
            engine.close()
        assert not engine.failed, engine.failed

    run_virtual(main)
    return recorder.run().journal


@pytest.mark.parametrize("policy", ["fcfs", "swap", "srpt", "chat-batch"])
@pytest.mark.parametrize("seed", [1, 2, 3, 5, 6])
def test_a_scripted_end_is_an_end_as_any_other(seed: int, policy: str) -> None:
    """With one step in flight and with several, swaps and recomputes: the journal of a model that ends by itself."""
    case = fixed_case(seed, policy, "paged")
    requests = tuple(msgspec.structs.replace(each, cancel_ns=0) for each in case.requests)
    case = Case(requests, case.policy, case.allocator, case.scheduler, case.memory, case.max_tokens)
    assert scripted(case) == simulated(case).journal


# ------------------------------------------------------------------------------------------------ agreement

few = st.lists(st.integers(0, 4), max_size=6)


def longest(one: Sequence[int], other: Sequence[int]) -> int:
    """By its definition."""
    if not one or not other:
        return 0
    if one[-1] == other[-1]:
        return 1 + longest(one[:-1], other[:-1])
    return max(longest(one[:-1], other), longest(one, other[:-1]))


@given(few, few)
def test_what_two_orders_have_in_common(one: list[int], other: list[int]) -> None:
    assert common(one, other) == longest(one, other)


def observed(*decisions: tuple[str, int]) -> Observed:
    made = [Decision(kind, id, at * 10**9) for at, (kind, id) in enumerate(decisions)]
    return Observed(dict.fromkeys(METRICS, 1.0), made, 0, 0, 0, 0)


def test_agreement_worked_by_hand() -> None:
    real = observed(("admit", 1), ("admit", 2), ("swap", 2), ("admit", 3), ("resume", 2))
    same = agreement(real, real)
    assert (same.first_divergence, same.diverged_s, same.same_admissions, same.same_victims) == (1.0, None, 1.0, 1.0)
    other = observed(("admit", 1), ("admit", 3), ("swap", 3), ("admit", 2), ("swap", 2), ("resume", 3))
    found = agreement(real, other)
    assert found.first_divergence == 1 / 6
    assert found.diverged_s == 1.0
    assert found.same_admissions == 2 / 3
    assert found.same_victims == 1 / 2
    assert found.preemptions == (1, 2)
    assert agreement(observed(("admit", 1)), observed(("admit", 1))).same_victims is None
    assert agreement(observed(), observed(("admit", 1))).first_divergence == 0.0


# ------------------------------------------------------------------------------------------------ ordering


def runs(*values: float) -> list[dict[str, float]]:
    return [dict.fromkeys(METRICS, value) for value in values]


def test_only_what_reality_tells_apart_is_ordered() -> None:
    """a and b overlap; c is worse than both by more than any two runs differ, and the prediction puts it before b."""
    real = {("a", 1.0): runs(10, 12), ("b", 1.0): runs(11, 13), ("c", 1.0): runs(20, 21)}
    told = {("a", 1.0): runs(11)[0], ("b", 1.0): runs(21)[0], ("c", 1.0): runs(20)[0]}
    found = ordering(real, told)
    pairs = {(each.better, each.worse): each for each in found.pairs if each.metric == "e2e_mean_ms"}
    assert set(pairs) == {("a", "c"), ("b", "c")}
    assert pairs["a", "c"].right
    assert not pairs["b", "c"].right
    assert pairs["b", "c"].margin == pytest.approx(8.5 / 12)
    assert found.share_right == 0.5
    assert found.worst_wrong == pytest.approx(8.5 / 12)
    assert found.worst_regret == 0.0
    worse = ordering(real, told | {("c", 1.0): runs(5)[0]})
    assert worse.worst_regret == pytest.approx(20.5 / 11 - 1)


def test_a_cell_that_is_steady_by_luck_is_held_to_the_floor() -> None:
    """a and b look steady, and differ by a tenth; c shows that two runs of one thing may differ by half."""
    real = {("a", 1.0): runs(10, 10), ("b", 1.0): runs(11, 11), ("c", 1.0): runs(30, 50)}
    found = ordering(real, {("a", 1.0): runs(10)[0], ("b", 1.0): runs(9)[0], ("c", 1.0): runs(40)[0]})
    assert {(each.better, each.worse) for each in found.pairs} == {("a", "c"), ("b", "c")}
    assert found.share_right == 1.0


def test_a_single_run_tells_nothing_of_how_far_two_are_apart() -> None:
    real = {("a", 1.0): runs(10), ("b", 1.0): runs(99)}
    assert ordering(real, {key: each[0] for key, each in real.items()}).share_right is None


# ------------------------------------------------------------------------------------------------ studies


def test_every_policy_gets_the_same_requests_and_the_halves_differ() -> None:
    study = Study(requests=30)
    first = workload_of(study, Cell("test", "fcfs", 0.9, 0), 2.0)
    assert first.digest() == workload_of(study, Cell("test", "swap", 0.9, 1), 2.0).digest()
    assert first.digest() != workload_of(study, Cell("fit", "fcfs", 0.9), 2.0).digest()
    assert len(first) == 30
    assert len(workload_of(study, Cell("test", "fcfs", 0.45), 2.0)) == 15
    faster = workload_of(study, Cell("test", "fcfs", 1.8), 2.0)
    assert faster.requests[-1].arrival_ns == pytest.approx(first.requests[-1].arrival_ns / 2, rel=1e-6)
    room = config_of(study, "fcfs")
    most = max(each.prompt_tokens + each.output_tokens for each in faster.requests)
    assert most < room.scheduler.max_context <= room.memory.pages * room.memory.page_size


@pytest.mark.parametrize(
    "wrong", [{"runs": 0}, {"requests": 0}, {"loads": (0.0,)}, {"policies": ()}, {"policies": ("no",)}]
)
def test_studies_that_cannot_be_run_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        check(Study(**wrong))


def test_what_a_round_is_predicted_from_lies_among_its_runs() -> None:
    study = Study(policies=("fcfs", "swap", "srpt"), loads=(0.5, 0.9, 1.3), runs=3)
    cells = list(in_order(study))
    assert len(set(cells)) == len(cells) == 1 + 3 * (4 + 9)
    assert cells[0].half == "capacity"
    assert {each for each in cells if each.half == "test"} == set(predicted_cells(study))
    for run in range(3):
        block = cells[1 + run * 13 : 1 + (run + 1) * 13]
        assert {each for each in block if each.half == "fit"} == set(fit_cells(study, run))
        assert {each.run for each in block} == {run}
        gaps = [place for place, each in enumerate(block) if each.half == "fit"]
        assert max(later - sooner for sooner, later in pairwise(gaps)) <= 4


ECHO = (
    *("--model", "echo", "--set", "model.placement=inline", "--set", "cost.options.base_ns=2000000"),
    *("--set", "cost.options.prefill_token_ns=20000", "--set", "cost.options.kv_token_ps=0"),
    *("--policies", "fcfs,swap", "--loads", "2", "--requests", "16"),
)


def test_the_whole_command_on_a_machine_of_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In real time, with steps of 2 ms: nothing here depends on how well that is kept."""
    out = tmp_path / "study"
    status, told, _ = call(capsys, "fidelity", *ECHO, "--out", out, "--minutes", "0")
    assert (status, "9 live runs left" in told) == (1, True)
    status, told, err = call(capsys, "fidelity", *ECHO, "--out", out)
    assert status == 0, told + err
    assert "100 % equal" in told
    assert (out / "report.md").read_text() in told
    report = msgspec.json.decode((out / "report.json").read_bytes())
    assert report["live_runs"] == 4
    assert report["different"] == []
    assert [(cell["policy"], cell["load"]) for cell in report["cells"]] == [("fcfs", 2.0), ("swap", 2.0)]
    assert [each["cost"]["model"] for each in report["calibrations"]] == ["curve", "curve"]
    for cell in report["cells"]:
        assert len(cell["step_ratios"]) == 2
        assert [row["metric"] for row in cell["metrics"]] == list(METRICS)
        assert all(row["real"] > 0 and row["predicted"] > 0 for row in cell["metrics"][:-1])
        assert all(row["paced_error"] != row["error"] for row in cell["metrics"][:6]), "no ratio is exactly 1"
        assert cell["agreement"]["same_admissions"] > 0
    assert len((out / "runs.jsonl").read_bytes().splitlines()) == 9
    finished = {each: each.stat().st_mtime_ns for each in (out / "runs").iterdir()}
    assert call(capsys, "fidelity", *ECHO, "--out", out)[0] == 0
    assert {each: each.stat().st_mtime_ns for each in (out / "runs").iterdir()} == finished, "nothing is run twice"
    status, _, err = call(capsys, "fidelity", *ECHO, "--out", out, "--seed", "1")
    assert status == 2
    assert "another folder" in err


@pytest.mark.slow
def test_a_real_model_in_a_process_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for needed in ("torch", "safetensors"):
        pytest.importorskip(needed)
    model, out = write_folder(tmp_path / "llama"), tmp_path / "study"
    few = ("--policies", "fcfs,swap", "--loads", "0.9,2", "--requests", "20", "--runs", "1")
    status, told, err = call(capsys, "fidelity", "--model", model, *few, "--out", out)
    assert status == 0, told + err
    assert "in worker process" in told
    assert "100 % equal" in told
