"""A workload drawn in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from stepwell.cli.tables import plain_table, share
from stepwell.sim.wording import many
from stepwell.sim.workload.describe import Description, Group, Lengths, headline, span
from stepwell.sim.workload.request import programs_told, rate_unit, told_rows

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ROWS = 5
"""Height of the rate's picture, in lines."""
_BAR = 18
_MOST_LINES = 12


def print_description(it: Description, to: Console) -> None:
    """All of it, for a person."""
    to.print(Text(headline(it), "bold"))
    for line in _remarks(it):
        to.print(line)
    to.print()
    _over_time(it, to)
    to.print()
    _lengths(it, to)
    to.print()
    _groups(it, to)
    to.print()
    _facts(it, to)
    if it.report is not None:
        to.print()
        rows = told_rows(it.report)
        for line in rows[:_MOST_LINES]:
            to.print(line)
        if len(rows) > _MOST_LINES:
            to.print(f"and {len(rows) - _MOST_LINES} more lines of this kind; --json has them")
    for note in it.notes:
        to.print(note)


def _remarks(it: Description) -> list[str]:
    profile = it.profile
    told = []
    if it.followers:
        told.append(programs_told(profile.requests, it.followers))
    if profile.uneven:
        told.append(
            f"warning: the first tenth arrives at {profile.head_rate_per_s:.3g} a second, the rest at"
            f" {profile.body_rate_per_s:.3g}: a run over the first requests does not speak for the whole"
        )
    return told


def _over_time(it: Description, to: Console) -> None:
    """The rate as a silhouette, its greatest value at the left."""
    over = it.over_time
    rates = over.per_s(over.requests)
    most = max(rates)
    label = f"{most:.3g}"
    of = ", those that arrive by the clock" if it.followers else ""
    to.print(Text(f"Requests a second over time{of}", "bold"))
    for row in range(_ROWS, 0, -1):
        left = label if row == _ROWS else "0" if row == 1 else ""
        to.print(f"{left:>8} ┤{''.join(_block(rate / most * _ROWS - row + 1) for rate in rates)}", style="")
    end = span(over.bin_ns * len(rates))
    to.print(f"{'':>8}  0{end:>{len(rates) - 1}}")


def _block(height: float) -> str:
    """A column of ``height`` lines, cut to one; what is there at all is seen."""
    eighths = round(8 * height)
    return _BLOCKS[min(max(eighths, 1 if height > 0 else 0), 8)]


def _lengths(it: Description, to: Console) -> None:
    """Two histograms side by side, a line for each doubling."""
    table = plain_table("tokens", "", "", "")
    table.columns[0].justify = "right"
    table.columns[1].header, table.columns[2].header = "prompts", "outputs"
    table.columns[1].justify = table.columns[2].justify = "left"
    first = min(_first(it.prompt.counts), _first(it.output.counts))
    most = max(*it.prompt.counts, *it.output.counts)
    for size in range(first, max(len(it.prompt.counts), len(it.output.counts))):
        low, high = 1 << size, (2 << size) - 1
        table.add_row(
            f"{low:,}" if low == high else f"{low:,}–{high:,}",
            *(_bar(each.counts, size, most, it.requests) for each in (it.prompt, it.output)),
        )
    to.print(table)
    to.print()
    numbers = plain_table("tokens", "mean", "p50", "p90", "p99", "least", "most", "a second")
    for name, each, rate in (
        ("prompts", it.prompt, it.prompt_tokens_per_s),
        ("outputs", it.output, it.output_tokens_per_s),
    ):
        numbers.add_row(name, *_numbers(each), "–" if rate is None else f"{rate:,.0f}")
    to.print(numbers)


def _numbers(it: Lengths) -> list[str]:
    return [f"{it.mean:,.1f}", *(f"{each:,}" for each in (it.p50, it.p90, it.p99, it.least, it.most))]


def _first(counts: Sequence[int]) -> int:
    return next(size for size, each in enumerate(counts) if each)


def _bar(counts: Sequence[int], size: int, most: int, total: int) -> str:
    count = counts[size] if size < len(counts) else 0
    if not count:
        return ""
    eighths = max(round(8 * _BAR * count / most), 1)
    bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return f"{bar} {100 * count / total:.1f} %"


def _groups(it: Description, to: Console) -> None:
    table = plain_table("", "requests", "share", "prompt", "output")
    for what, groups in (("class", it.classes), ("tenant", it.tenants)):
        for each in groups if len(groups) > 1 or what == "class" else []:
            table.add_row(f"{what} {each.name}", *_group(each))
    to.print(table)


def _group(it: Group) -> list[str]:
    return [f"{it.requests:,}", share(it.share), f"{it.prompt_mean:,.0f}", f"{it.output_mean:,.0f}"]


def _facts(it: Description, to: Console) -> None:
    profile, programs = it.profile, it.programs
    table = plain_table("", "")
    table.show_header = False
    table.columns[1].no_wrap = False
    head, body = f"{profile.head_rate_per_s:.3g}", f"{profile.body_rate_per_s:.3g}"
    same = f", {profile.simultaneous:,} arrive together with the one before" if profile.simultaneous else ""
    table.add_row("gaps between arrivals", f"CV {profile.gap_cv:.2f} (Poisson: 1){same}")
    table.add_row("first tenth, rest", f"{head} and {body} {rate_unit(it.followers)}")
    if programs.programs:
        each = f"{programs.mean:.1f} each, at most {programs.most:,}"
        table.add_row("programs", f"{programs.programs:,} with {programs.requests:,} requests, {each}")
    else:
        table.add_row("programs", "none is known")
    if it.cancelled:
        table.add_row("clients that leave", f"{many(it.cancelled, 'request')}")
    if it.shared_keys is None:
        table.add_row("shared prefixes", "no prefix identity: nothing can be said about prefix reuse")
    else:
        text = f"{100 * it.shared_keys:.1f} % of keys ({it.key_tokens} tokens each) seen before: what a cache that"
        table.add_row("shared prefixes", f"{text} never forgets would find")
    to.print(table)
