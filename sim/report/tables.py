"""Tables of a comparison as HTML, readable without scripts; every text in them is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from stepwell.sim.compare.result import Difference, Metric, Point
from stepwell.sim.report.lookup import ALL, Found
from stepwell.sim.report.numbers import MISSING, UNITS, change, figure, interval, percent, rate

_SHOWN = (
    "slo_attainment",
    "goodput_per_s",
    "ttft_mean_ms",
    "ttft_p99_ms",
    "tpot_p99_ms",
    "e2e_mean_ms",
    "output_tokens_per_s",
    "preemptions",
    "recompute_tax",
    "kv_utilisation",
    "rejected_share",
    "extrapolated_share",
)
_WEIGHED = ("slo_attainment", "goodput_per_s", "ttft_p99_ms", "tpot_p99_ms", "e2e_mean_ms", "output_tokens_per_s")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, group: int = 0, kind: str = "sortable") -> str:
    """Rows of cells, which are HTML already; ``name`` makes the first of each.  ``group`` of them belong together."""
    cells = "".join(f'<th scope="col">{each}</th>' for each in head)
    marks = [' class="first"' if group and at and not at % group else "" for at in range(len(rows))]
    body = "".join(f"<tr{mark}>{''.join(row)}</tr>\n" for mark, row in zip(marks, rows, strict=True))
    return (
        f'<div class="wide" tabindex="0"><table class="{kind}"><thead><tr>{cells}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def name(text: str, below: str = "") -> str:
    """The head of a row."""
    small = f"<small>{escape(below)}</small>" if below else ""
    return f'<th scope="row">{escape(text)}{small}</th>'


def cell(text: str, *below: str, sort: float | None = None, kind: str = "") -> str:
    """A number, and what is said of it in small letters."""
    order = f' data-sort="{sort!r}"' if sort is not None else ""
    look = f' class="{kind}"' if kind else ""
    small = "".join(f"<small>{escape(each)}</small>" for each in below if each)
    return f"<td{order}{look}>{escape(text)}{small}</td>"


def results(found: Found, scope: str) -> str:
    """Contender by point, a column a metric, each with its interval; the best at a point stands out."""
    names = [each for each in _SHOWN if any((row.scope, row.metric) == (scope, each) for row in found.comparison.rows)]
    metrics = [found.metric(each) for each in names]
    rows = []
    for point in found.points:
        for label in found.labels:
            line = [name(label, point.label)]
            line += [_result(found, label, point, metric, scope) for metric in metrics]
            rows.append(line)
    return table(["contender", *map(_headed, metrics)], rows, group=len(found.labels))


def _headed(metric: Metric) -> str:
    unit = UNITS.get(metric.unit, metric.unit)
    arrow = {1: " ↑", -1: " ↓"}.get(metric.better, "")
    return f"{escape(metric.label)}{f', {unit}' if unit else ''}{arrow}"


def _result(found: Found, label: str, point: Point, metric: Metric, scope: str) -> str:
    row = found.row(label, point, metric.name, scope)
    if row is None:
        return cell(MISSING)
    ranking = found.ranking(point, metric.name, scope)
    ranks = {each.contender: each.rank for each in ranking.order} if ranking is not None else {}
    best = ranks.get(label) == 1 and len(set(ranks.values())) > 1
    return cell(figure(metric, row.mean), interval(metric, row), sort=row.mean, kind="best" if best else "")


def differences(found: Found) -> str:
    """Each contender minus the baseline under the same requests; words say whether it is real."""
    scopes = [each for each in found.axes.scopes if each != ALL]
    columns = [(found.metric(each), scope) for each in _WEIGHED for scope in _scopes(found, each, scopes)]
    columns = [each for each in columns if any(_difference(found, label, each) for label in found.labels)]
    rows = []
    for point in found.points:
        for label in found.labels:
            if label == found.baseline:
                continue
            line = [name(label, point.label)]
            for metric, scope in columns:
                line.append(_changed(metric, found.difference(label, point, metric.name, scope)))
            rows.append(line)
    head = [f"{_headed(metric)}{'' if scope == ALL else '<br>' + escape(scope)}" for metric, scope in columns]
    return table([f"minus {escape(found.baseline)}", *head], rows, group=len(found.labels) - 1)


def _scopes(found: Found, metric: str, classes: Sequence[str]) -> Sequence[str]:
    return classes if classes and found.metric(metric).scoped and metric.endswith("_ms") else [ALL]


def _difference(found: Found, label: str, column: tuple[Metric, str]) -> bool:
    metric, scope = column
    return any(found.difference(label, point, metric.name, scope) is not None for point in found.points)


def _changed(metric: Metric, it: Difference | None) -> str:
    if it is None:
        return cell(MISSING)
    verdict = {True: "better", False: "worse", None: ""}[it.better]
    if not verdict:
        verdict = "may be chance" if it.real is False else "no interval" if it.real is None else "differs"
    share = f"{percent(it.relative, 1)}, " if it.relative is not None else ""
    kind = verdict if verdict in ("better", "worse") else "chance"
    return cell(change(metric, it), f"{share}{verdict}", interval(metric, it), sort=it.mean, kind=kind)


def knees(found: Found) -> str:
    """The highest rate that holds the objectives, and the difference to the baseline's."""
    rows = []
    for knee in found.comparison.knees:
        bounds = {each.bound for each in knee.seeds}
        sign = "≥ " if "above" in bounds else "< " if bounds == {"below"} else ""
        span = f"{knee.low:,.3g} to {knee.high:,.3g}" if knee.low is not None and knee.high is not None else ""
        line = [name(knee.contender), cell(f"{sign}{knee.mean:,.3g}", span, sort=knee.mean)]
        if knee.difference is None or knee.contender == found.baseline:
            line.append(cell(MISSING))
        else:
            low, high = knee.difference_low, knee.difference_high
            span = f"{low:+,.3g} to {high:+,.3g}".replace("-", "−") if low is not None and high is not None else ""
            line.append(cell(f"{knee.difference:+,.3g}".replace("-", "−"), span, sort=knee.difference))
        rows.append(line)
    return table(["contender", found.comparison.rate_unit, f"minus {escape(found.baseline)}"], rows)


def asked(found: Found) -> str:
    """What was compared, in pairs of name and value."""
    it = found.comparison
    first = it.workloads[0] if it.workloads else None
    points = ", ".join(f"{each.label} = {rate(found.rate(each), it.rate_unit)}" for each in found.points)
    pairs = [
        ("scenario", it.scenario or "built in"),
        ("contenders", ", ".join(found.labels) + f" (baseline {found.baseline})"),
        ("rates", points),
        ("seeds", ", ".join(map(str, found.axes.seeds))),
        ("workload", "; ".join(first.lines) if first is not None else MISSING),
        ("objectives", "; ".join(_objectives(found)) or "none"),
        ("version", f"stepwell {it.stepwell}"),
        ("digest of the question", it.digest),
        ("digests of the workloads", ", ".join(f"{each.seed}: {each.digest[:16]}" for each in it.workloads)),
    ]
    return "<dl>" + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in pairs) + "</dl>"


_WORDS = {
    "TTFT": "time to first token: from arrival to the first token of the answer",
    "TPOT": "time per output token after the first: how fast the answer flows",
    "E2E": "end to end: from arrival to the last token",
    "p99": "99 of 100 requests took at most that",
    "SLO attainment": "share of requests that met every objective of their class (those without any are left out)",
    "goodput": "requests a second that met their objectives, those without any by completing",
    "preemption": "a running request is sent away, its pages copied to the host or dropped",
    "recompute tax": "share of computed tokens that had been computed before and dropped",
    "KV use": "share of the KV cache's pages that requests hold, over time; cached ones that nobody uses are left out",
    "prefix hits": "share of prompt tokens that were found in the KV cache when their requests were first admitted",
}


def glossary() -> str:
    """The words of the tables' heads."""
    pairs = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in _WORDS.items())
    return f"<details><summary>What the words mean</summary><dl>{pairs}</dl></details>"


def _objectives(found: Found) -> Iterator[str]:
    for each in found.axes.classes:
        limits = [f"{what} {value:g} ms" for what, value in (("TTFT", each.ttft_ms), ("TPOT", each.tpot_ms)) if value]
        yield f"{each.name}: {' and '.join(limits) if limits else 'to complete'}"


def failures(found: Found) -> str:
    rows = [
        [
            name(each.contender, f"{each.point.label}, seed {each.seed}"),
            cell(each.error),
            f"<td><code>{escape(each.command)}</code></td>",
        ]
        for each in found.comparison.failures
    ]
    return table(["run", "error", "again"], rows, kind="words")
