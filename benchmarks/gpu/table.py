"""The figures and the targets as tables of plain text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stepwell.benchmarks.gpu.lines import Line, shown
from stepwell.benchmarks.gpu.targets import Outcome

_WIDEST = 76


def figures(lines: Iterable[Line]) -> Iterator[str]:
    """One line each: what, how much, and what is to be said of it."""
    for line in lines:
        yield f"  {line.what:<{_WIDEST}}  {line.told()}"


def targets(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What was to be reached, what was, and the verdict."""
    yield f"  {'':<{_WIDEST}}  {'target':>10}  {'measured':>10}  verdict"
    for each in outcomes:
        target = each.target
        bound = f"{'≤' if target.most else '≥'} {shown(target.bound)} {target.unit}".rstrip()
        value = "" if each.value is None else f"{shown(each.value)} {target.unit}".rstrip()
        verdict = each.verdict + (f": {each.why}" if each.why else "")
        yield f"  {target.what:<{_WIDEST}}  {bound:>10}  {value:>10}  {verdict}"
