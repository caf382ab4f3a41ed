"""A fidelity report for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stepwell.sim.fidelity.agreement import Agreement
from stepwell.sim.fidelity.observed import METRICS
from stepwell.sim.fidelity.ordering import COMPARED
from stepwell.sim.fidelity.report import PAIRS, RIGHT, TARGETS, WRONG_BY, CellReport, MetricRow, Report

NAMES = {
    "ttft_mean_ms": "TTFT mean",
    "ttft_p99_ms": "TTFT p99",
    "tpot_mean_ms": "TPOT mean",
    "tpot_p99_ms": "TPOT p99",
    "e2e_mean_ms": "E2E mean",
    "e2e_p99_ms": "E2E p99",
    "output_tokens_per_s": "output tokens/s",
    "mean_queue": "mean queue",
}


def markdown(report: Report) -> str:
    """The whole report."""
    parts = (_head(report), _decisions(report), _errors(report), _ordering(report), _cells(report), _agreements(report))
    return "\n".join(line for part in parts for line in (*part, "")).rstrip() + "\n"


def percent(value: float | None, *, sign: bool = False) -> str:
    if value is None:
        return "–"
    return f"{100 * value:+.1f} %" if sign else f"{100 * value:.1f} %"


def _head(report: Report) -> Iterator[str]:
    study, fits = report.study, report.calibrations
    yield "# Predicted against real"
    yield ""
    yield (
        f"{report.model}, {report.where}; {len(study.policies)} policies at loads"
        f" {', '.join(f'{each:g}' for each in study.loads)} of a capacity of {report.capacity_per_s:.2f} requests/s,"
        f" {study.requests} requests a run (fewer at low load), {study.runs} live runs each, seed {study.seed}"
        + (f", {', '.join(study.settings)}" if study.settings else "")
        + "."
    )
    for number, fit in enumerate(fits, 1):
        yield (
            f"Round {number}: cost model `{fit.cost.model}`, fitted to {fit.fitted} steps of live runs on other"
            f" requests that lie among those predicted; held-out steps are off by {percent(fit.errors.mean)} on"
            f" average, nine in ten by at most {percent(fit.errors.p90)}, their sum by"
            f" {percent(fit.errors.bias, sign=True)}."
        )
    yield "Predictions run free: they get the requests and nothing of the live run."
    for number in range(study.runs):
        ratios = sorted(cell.step_ratios[number] for cell in report.cells)
        yield (
            f"Round {number + 1}: the steps of a live run took {percent(ratios[0])} to {percent(ratios[-1])} (median"
            f" {percent(ratios[len(ratios) // 2])}) of what the cost model says of steps of these very shapes. That"
            " part of an error is the machine's, or the cost model's; the rest is the scheduler's."
        )
    late = [cell for cell in report.cells if not cell.valid]
    if late:
        told = ", ".join(f"{cell.policy} at {cell.load:g}" for cell in late)
        yield f"**Not valid**, as the client was late by more than a twentieth of the mean TTFT: {told}."


def _decisions(report: Report) -> Iterator[str]:
    yield "## Decisions under recorded times"
    yield ""
    if report.different:
        yield f"**{len(report.different)} of {report.live_runs} journals differ**: " + "; ".join(report.different)
    else:
        yield f"All {report.turns:,} turns of {report.live_runs} journals, decided again from events: 100 % equal."


def _errors(report: Report) -> Iterator[str]:
    yield "## Errors by load"
    yield ""
    yield (
        "Over policies: the mean of |predicted − real| / real, the mean with its sign, the worst. The floor is what"
        " separates two live runs of the same requests (root mean square). *At its pace*: the mean of |error| when a"
        " prediction is told one number of its live run, what all its steps took by what the cost model says of them;"
        " what is left is not the machine's speed. Target: "
        + "; ".join(
            f"{NAMES[metric]} {percent(allowed)}" + (f" or {times:g} × floor" if times else "")
            for metric, (allowed, times) in TARGETS.items()
        )
        + "."
    )
    yield ""
    rows = [
        (
            f"{each.load:g}",
            NAMES[each.metric],
            percent(each.floor),
            percent(each.mean_error),
            percent(each.bias, sign=True),
            f"{percent(each.worst_error)} ({each.worst_policy})",
            percent(each.paced_error),
            "–" if each.met is None else f"{each.met} of {each.cells}",
        )
        for each in report.loads
    ]
    yield from _table(("load", "metric", "floor", "error", "bias", "worst", "at its pace", "target met"), rows)


def _ordering(report: Report) -> Iterator[str]:
    order = report.ordering
    yield "## Does it order policies as reality does?"
    yield ""
    if order.share_right is None:
        yield "No two policies differ by more than two runs of one do."
        return
    yield (
        f"{len(order.pairs)} pairs of policies differ really by more than the runs of either and than the floor;"
        f" {percent(order.share_right)} are ordered right (target: {percent(RIGHT)} of at least {PAIRS}). The largest"
        f" real difference that was ordered wrong is {percent(order.worst_wrong)} (target: {percent(WRONG_BY)});"
        f" whoever takes the policy that is predicted to be best loses {percent(order.worst_regret)} at most."
    )
    paced = report.paced_ordering
    if paced is not None:
        yield (
            f"Told each live run's pace: {percent(paced.share_right)} right, {percent(paced.worst_wrong)} the largest"
            f" wrong, {percent(paced.worst_regret)} lost at most."
        )
    yield ""
    rows = []
    for metric in COMPARED:
        pairs = [each for each in order.pairs if each.metric == metric]
        right = sum(each.right for each in pairs)
        wrong = max((each.margin for each in pairs if not each.right), default=0.0)
        regret = max((each.regret for each in order.choices if each.metric == metric), default=0.0)
        share = percent(right / len(pairs)) if pairs else "–"
        rows.append((NAMES[metric], f"{len(pairs)}", share, percent(wrong), percent(regret)))
    yield from _table(("metric", "pairs", "right", "worst wrong", "worst regret"), rows)


def _cells(report: Report) -> Iterator[str]:
    yield "## Every policy at every load"
    yield ""
    yield "Real (mean of the runs) → error of the prediction ± what separates this cell's own runs."
    yield ""
    heads = ("policy", "load", *(NAMES[metric] for metric in METRICS), "steps beyond")
    yield from _table(heads, (_cell(cell) for cell in report.cells))


def _cell(cell: CellReport) -> tuple[str, ...]:
    return (
        cell.policy,
        f"{cell.load:g}",
        *(_metric(row) for row in cell.metrics),
        percent(cell.extrapolated_share),
    )


def _metric(row: MetricRow) -> str:
    mark = " ✗" if row.met is False else ""
    return f"{row.real:.4g} → {percent(row.error, sign=True)} ± {percent(row.spread)}{mark}"


def _agreements(report: Report) -> Iterator[str]:
    yield "## Decisions of free-running predictions"
    yield ""
    yield (
        "Against the first live run; in brackets what the second live run agrees on with it. *Diverged*: the part of"
        " all decisions before the first that is another one. *Admissions*: made by both in the same order. *Victims*:"
        " gave way in both. *Preemptions*: real and predicted."
    )
    yield ""
    rows = []
    for cell in report.cells:
        mine, between = cell.agreement, cell.between_runs
        rows.append(
            (
                cell.policy,
                f"{cell.load:g}",
                _both(mine, between, "first_divergence"),
                _both(mine, between, "same_admissions"),
                _both(mine, between, "same_victims"),
                f"{mine.preemptions[0]}, {mine.preemptions[1]}" + (f" ({between.preemptions[1]})" if between else ""),
            )
        )
    yield from _table(("policy", "load", "diverged", "admissions", "victims", "preemptions"), rows)


def _both(mine: Agreement, between: Agreement | None, field: str) -> str:
    return percent(getattr(mine, field)) + (f" ({percent(getattr(between, field))})" if between else "")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
