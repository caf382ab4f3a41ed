"""Numbers as people read them: with the digits that matter, their unit, and how far they are to be trusted."""

from __future__ import annotations

from stepwell.core.types import NS_PER_MS
from stepwell.sim.compare.result import Difference, Metric, Row
from stepwell.sim.wording import seconds

MISSING = "–"
UNITS = {"ms": "ms", "/s": "/s", "share": "%", "count": "", "ratio": ""}
"""As the head of a column says it."""


def figure(metric: Metric, value: float) -> str:
    """In a column whose head names the unit."""
    value = 100 * value if metric.unit == "share" else value
    size = abs(value)
    if metric.unit == "ratio":
        text = f"{value:.3f}"
    elif metric.unit == "share" or 10 <= size < 100:
        text = f"{value:.1f}"
    else:
        text = f"{value:,.0f}" if size >= 100 else f"{value:.2f}"
    return text if text.strip("-0.") else "0"


def interval(metric: Metric, row: Row | Difference) -> str:
    """Its 95 % interval as it is everywhere, cut nowhere; empty if there is none."""
    if row.low is None or row.high is None:
        return ""
    return f"{_signed(metric, row.low, row)} to {_signed(metric, row.high, row)}"


def _signed(metric: Metric, value: float, row: Row | Difference) -> str:
    text = figure(metric, value)
    return f"+{text}" if isinstance(row, Difference) and value > 0 and text != "0" else text.replace("-", "−")


def change(metric: Metric, difference: Difference) -> str:
    """A difference with its sign."""
    return _signed(metric, difference.mean, difference)


def percent(share: float | None, digits: int = 0) -> str:
    """A share, signed."""
    return MISSING if share is None else f"{'+' if share > 0 else ''}{100 * share:,.{digits}f} %".replace("-", "−")


def spoken(metric: Metric, value: float) -> str:
    """In a sentence."""
    if metric.unit == "ms":
        return seconds(round(abs(value) * NS_PER_MS))
    if metric.unit == "share":
        return f"{100 * value:.1f} %"
    return f"{value:,.4g}{UNITS.get(metric.unit, '')}"


def rate(value: float, unit: str = "requests/s") -> str:
    return f"{value:,.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
