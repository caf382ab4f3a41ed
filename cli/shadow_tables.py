"""What a shadow policy would have decided otherwise, for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from stepwell.cli.tables import share
from stepwell.core.shadow import ShadowReport
from stepwell.core.types import NS_PER_S

_SHOWN = 5
"""Examples."""


def print_shadow(live: str, report: ShadowReport, to: Console) -> None:
    """The share of steps, what it would have done with whom, and the latest examples."""
    to.print()
    to.print(
        f"{report.policy}, asked beside {live} in {report.compared:,} steps ({report.repeated:,} repeated themselves),"
        f" would have decided otherwise in {report.differed:,} of them ({share(report.differed_share)}):"
    )
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for name in (live, report.policy):
        table.add_column(name, no_wrap=True)
    for name in ("steps", "requests"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in report.differences:
        table.add_row(each.live, each.shadow, f"{each.steps:,}", f"{each.requests:,}")
    if report.differences:
        to.print(table)
    to.print(
        f"slices of the same prompts differ by {report.chunk_tokens:,} tokens; prompt tokens in these steps:"
        f" {report.live_tokens:,}, and {report.shadow_tokens:,} by {report.policy}"
    )
    for it in report.examples[:_SHOWN]:
        when = f"{it.now_ns / NS_PER_S:.3f} s, step {it.step}"
        to.print(f"{when}: request {it.request} ({it.klass}): {it.live}, not {it.shadow}")
    if report.off:
        to.print(f"it was switched off: {report.off}")
