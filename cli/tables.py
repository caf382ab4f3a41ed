"""Tables for people: one run by class and percentile, or several side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepwell.sim.summary import ClassSummary, Spread, Summary

Cell = tuple[str, float | None]
"""What is shown, and the number to compare by; None where there is none."""

_LATENCIES = (("TTFT", "ttft_ms"), ("ITL", "itl_ms"), ("TPOT", "tpot_ms"), ("E2E", "e2e_ms"))
_LABEL, _COLUMN = 24, 13
_LEAST = 40


def console() -> Console:
    """Stdout as wide as the terminal (80 columns when piped, unless COLUMNS says otherwise)."""
    return Console(highlight=False, emoji=False, markup=False)


def time_of(value_ms: float | None) -> str:
    """A latency with the digits that matter."""
    if value_ms is None:
        return "–"
    if value_ms >= 1000:
        return f"{value_ms / 1000:.2f} s"
    if value_ms < 0.1:
        return f"{value_ms * 1000:.3g} µs"
    return f"{value_ms:#.3g} ms" if value_ms < 100 else f"{value_ms:.0f} ms"


def share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def print_runs(runs: Sequence[Summary], to: Console) -> None:
    """One run in full, several as a comparison."""
    if len(runs) == 1:
        _one(runs[0], to)
        return
    fit = max(1, (max(to.width, _LEAST) - _LABEL - 2) // _COLUMN)
    for start in range(0, len(runs), fit):
        _compared(runs[start : start + fit], runs, to)


def _one(run: Summary, to: Console) -> None:
    scopes = _scopes(run)
    latency = plain_table("", "", "mean", "p50", "p90", "p95", "p99")
    for name, field in _LATENCIES:
        for place, scope in enumerate(scopes):
            spread: Spread = getattr(scope, field)
            values = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99)
            last = place == len(scopes) - 1
            latency.add_row(name if not place else "", scope.name, *map(time_of, values), end_section=last)
    to.print(latency)
    classes = plain_table("", *[scope.name for scope in scopes])
    for label, tell, _ in _SCOPED:
        classes.add_row(label, *[tell(scope)[0] for scope in scopes])
    to.print()
    to.print(classes)
    to.print()
    whole = plain_table("", run.policy)
    for label, tell_run, _ in _WHOLE:
        whole.add_row(label, tell_run(run)[0])
    to.print(whole)


def _compared(runs: Sequence[Summary], everybody: Sequence[Summary], to: Console) -> None:
    table = plain_table("", *[run.policy for run in runs])

    def row(label: str, cells: Iterable[Cell], all_cells: Iterable[Cell], better: int, *, last: bool = False) -> None:
        numbers = [number for _, number in all_cells if number is not None]
        best = (max(numbers) if better > 0 else min(numbers)) if better and len(set(numbers)) > 1 else None
        shown = [Text(text, "bold green" if best is not None and number == best else "") for text, number in cells]
        table.add_row(label, *shown, end_section=last)

    for index, (label, tell, better) in enumerate(_WHOLE):
        row(label, map(tell, runs), map(tell, everybody), better, last=index == len(_WHOLE) - 1)
    for place, scope in enumerate(_scopes(runs[0])):
        if len(_scopes(runs[0])) == 2 and not place:
            continue
        table.add_row(Text("all classes" if not place else f"class {scope.name}", "bold"))
        mine, whole = [_scopes(run)[place] for run in runs], [_scopes(run)[place] for run in everybody]
        for label, tell_scope, better in _SCOPED:
            row(f"  {label}", map(tell_scope, mine), map(tell_scope, whole), better)
        for name, field in _LATENCIES:
            for quantile in ("p50", "p90", "p99"):

                def cell(scope: ClassSummary, field: str = field, quantile: str = quantile) -> Cell:
                    value: float | None = getattr(getattr(scope, field), quantile)
                    return time_of(value), value

                last = (name, quantile) == ("E2E", "p99")
                row(f"  {name} {quantile}", map(cell, mine), map(cell, whole), -1, last=last)
    to.print(table)


def plain_table(first: str, *columns: str) -> Table:
    """Without lines; the first column to the left, the others to the right."""
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    return table


def _scopes(run: Summary) -> list[ClassSummary]:
    return [run.all, *(run.classes if len(run.classes) > 1 else [])]


def _counts(table: dict[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in table.items())


def _rejected(run: Summary) -> Cell:
    total = sum(run.rejected.values())
    return (_counts(run.rejected) if total else "0"), total


def _other(run: Summary) -> Cell:
    rest = {name: count for name, count in run.ended.items() if name not in ("stop", "length", "rejected")}
    if run.unfinished:
        rest["unfinished"] = run.unfinished
    return _counts(rest) or "0", sum(rest.values())


def step_times(run: Summary) -> str:
    """Where its step times come from, and how far they are to be trusted."""
    if run.measured_share is not None:
        return f"{share(run.measured_share)} measured"
    if run.step_times != "predicted":
        return run.step_times
    error = f", ±{100 * run.step_error_p90:.1f} %" if run.step_error_p90 is not None else ""
    return f"{share(run.extrapolated_share)} beyond{error}"


def _attainment(scope: ClassSummary) -> Cell:
    value = scope.slo_attainment if scope.has_objectives else None
    return share(value), value


_SCOPED: list[tuple[str, Callable[[ClassSummary], Cell], int]] = [
    ("requests", lambda it: (f"{it.offered}", None), 0),
    ("completed", lambda it: (f"{it.completed}", it.completed), 1),
    ("SLO attainment", _attainment, 1),
    ("goodput /s", lambda it: (f"{it.goodput_per_s:.2f}", it.goodput_per_s), 1),
    ("preemptions", lambda it: (f"{it.preemptions}", it.preemptions), 0),
]
"""Label, what to show of a class, and whether more (1) or less (-1) is better."""

_WHOLE: list[tuple[str, Callable[[Summary], Cell], int]] = [
    ("run time", lambda it: (f"{it.duration_s:.1f} s", it.duration_s), 0),
    ("requests /s", lambda it: (f"{it.requests_per_s:.2f}", it.requests_per_s), 1),
    ("output tokens /s", lambda it: (f"{it.output_tokens_per_s:.0f}", it.output_tokens_per_s), 1),
    ("steps", lambda it: (f"{it.steps}" + (f" ({it.failed_steps} failed)" if it.failed_steps else ""), None), 0),
    ("preempted by swap", lambda it: (f"{it.preemptions_swap}", None), 0),
    ("  by recompute", lambda it: (f"{it.preemptions_recompute}", None), 0),
    ("recompute tax", lambda it: (share(it.recompute_tax), it.recompute_tax), -1),
    ("prefix hits", lambda it: (share(it.cached_share), it.cached_share), 0),
    ("KV use", lambda it: (share(it.kv_utilisation), None), 0),
    ("device busy", lambda it: (share(it.device_busy), None), 0),
    ("step times", lambda it: (step_times(it), None), 0),
    ("rejected", _rejected, -1),
    ("not completed otherwise", _other, -1),
]
