"""Decisions recorded on another machine, executed here: each one made again and compared, each step carried out and
timed beside what a calibrated cost model says of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from stepwell.backends.kernels.choose import Asked
from stepwell.benchmarks.gpu import recording
from stepwell.benchmarks.gpu.bench import Bench
from stepwell.benchmarks.gpu.engine import backend_of
from stepwell.benchmarks.gpu.held import Held
from stepwell.benchmarks.gpu.lines import Line
from stepwell.core.config import CostConfig
from stepwell.core.protocols import Backend
from stepwell.core.registry import make_cost_model
from stepwell.sim.calibration.calibrate import calibrate
from stepwell.sim.execute import execute
from stepwell.sim.replay import replay
from stepwell.sim.step_reader import MeasuredStep
from stepwell.sim.step_times import StepTime

STEPS, DECISIONS = "steps", "decisions"
MODEL = "curve"
_NOTHING = CostConfig(model="linear")
"""While there is nothing to predict with yet."""


def run(bench: Bench) -> None:
    bench.each("journals", lambda: journals(bench), DECISIONS)


def journals(bench: Bench) -> Iterator[Line]:
    # At toy size in plain torch: what is looked at is not the kernels, and their interpreter would take minutes.
    kernels: Asked = "triton" if bench.card else "plain"
    backend = backend_of(bench, recording.config_of(house(bench), recording.POLICIES[0]), kernels=kernels)
    try:
        with tempfile.TemporaryDirectory(prefix="stepwell-gpu-") as folder:
            cost, lines = calibrated(bench, backend, Path(folder))
            yield from lines
            answers: dict[str, Mapping[int, Sequence[int]]] = {}
            for policy, path in recorded(bench, Path(folder)).items():
                bench.check()
                held = Held(backend)
                yield from executed(bench, held, policy, path, cost)
                answers[policy] = held.answers
            yield agreement(bench, answers)
    finally:
        backend.close()


def house(bench: Bench) -> recording.House:
    return recording.CARD if bench.card else recording.NO_CARD


def recorded(bench: Bench, folder: Path) -> dict[str, Path]:
    """By policy: those that were committed, or at toy size ones that are made now."""
    if bench.card:
        return {policy: recording.JOURNALS / f"{policy}.jsonl" for policy in recording.POLICIES}
    return {
        policy: recording.record(recording.NO_CARD, policy, folder / f"{policy}.jsonl") for policy in recording.POLICIES
    }


def calibrated(bench: Bench, backend: Backend, folder: Path) -> tuple[CostConfig, list[Line]]:
    """A cost model fitted to steps of requests that are no part of the journals; and how well it does on steps of those
    that the fit did not see."""
    steps: list[MeasuredStep] = []
    for seed, policy in enumerate(("swap", "sarathi"), recording.SEED + 1):
        bench.check()
        path = recording.record(house(bench), policy, folder / f"calibration-{policy}.jsonl", seed)
        times_of(Held(backend), path, _NOTHING)  # whatever is compiled at the first time is compiled now
        steps += [MeasuredStep(each.shape, each.measured_ns) for each in times_of(Held(backend), path, _NOTHING)]
    found = calibrate(steps, model=MODEL)
    errors = found.errors
    note = (
        f"p50 {100 * errors.p50:.2f}, p90 {100 * errors.p90:.2f}, bias {100 * errors.bias:+.2f} %; {errors.steps} steps"
    )
    what = f"step times of the calibrated model ({MODEL}, {found.fitted} steps): mean error on others"
    line = bench.line(what, 100 * errors.mean, "%", STEPS, note, options=dict(found.cost.options))
    return found.cost, [line]


def times_of(held: Held, path: Path, cost: CostConfig) -> list[StepTime]:
    """Execute a journal to its end.  Raises ``UserError`` for a step that cannot be executed."""
    times = execute(path, held, make_cost_model(cost), vocabulary=held.info.vocab_size)
    held.empty()
    return times.steps


def executed(bench: Bench, held: Held, policy: str, path: Path, cost: CostConfig) -> Iterator[Line]:
    report = replay(path)
    steps = times_of(held, path, cost)
    told = str(report.difference) if report.difference else (held.wrong or [""])[0]
    note = told or f"{report.instructions:,} instructions, {held.steps:,} steps, {held.rows:,} tokens"
    equal = 0.0 if report.difference else 100 * (1 - len(held.wrong) / max(held.steps, 1))
    yield bench.line(f"{policy}: decisions made again and carried out", equal, "%", DECISIONS, note)
    measured_s, predicted_s = (
        sum(each) / 1e9 for each in zip(*((s.measured_ns, s.predicted_ns) for s in steps), strict=True)
    )
    error = fmean(abs(each.measured_ns / each.predicted_ns - 1) for each in steps)
    note = f"{predicted_s:.3f} s predicted, {measured_s:.3f} s measured, {100 * (measured_s / predicted_s - 1):+.2f} %"
    yield bench.line(f"{policy}: step times predicted, mean error", 100 * error, "%", STEPS, note)


def agreement(bench: Bench, answers: Mapping[str, Mapping[int, Sequence[int]]]) -> Line:
    """The same requests under six policies, which cut and batch them differently: where rounding never tips the balance
    between two tokens, their answers are the same."""
    first, *others = answers.values()
    pairs = [(first[request], each[request]) for each in others for request in first]
    same = sum(a == b for one, other in pairs for a, b in zip(one, other, strict=False))
    share = same / sum(len(one) for one, _ in pairs)
    return bench.line("tokens that are the same under the other policies", 100 * share, "%")
