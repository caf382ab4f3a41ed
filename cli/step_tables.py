"""Step times by batch shape, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from stepwell.cli.tables import console, time_of
from stepwell.sim.step_times import ShapeTimes, TotalTimes
from stepwell.sim.wording import many


def print_times(rows: Sequence[ShapeTimes], total: TotalTimes) -> None:
    """A row a shape, and the total below."""
    to = console()
    if not total.steps:
        to.print("the journal holds no finished step: nothing was executed")
        return
    live = total.recorded_s is not None
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    to.print("medians by prefill tokens, decoding requests and KV tokens read")
    heads = ("prefill", "decoding", "KV tokens", "steps", "measured", "predicted", "ratio")
    for name in (*heads, *(["recorded"] if live else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = [_span(row.prefill_tokens), _span(row.decode_requests), _span(row.kv_tokens), f"{row.steps:,}"]
        cells += [time_of(row.measured_p50_ms), time_of(row.predicted_p50_ms), f"{row.ratio:.2f}"]
        table.add_row(*cells, *([time_of(row.recorded_p50_ms)] if live else []))
    to.print(table)
    told = f"measured {total.measured_s:.2f} s, predicted {total.predicted_s:.2f} s, ratio {total.ratio:.2f}"
    if total.recorded_s is not None and total.ratio_to_recorded is not None:
        told += f"; when it was recorded {total.recorded_s:.2f} s, ratio {total.ratio_to_recorded:.2f}"
    to.print(f"{many(total.steps, 'step')}: {told}", soft_wrap=True)


def _span(span: tuple[int, int]) -> str:
    least, most = span
    return f"{least:,}" if least == most else f"{least:,}–{most:,}"
