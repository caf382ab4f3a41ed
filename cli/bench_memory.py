"""``stepwell bench memory``: what page allocators cost, and what they waste."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from rich.table import Table

from stepwell.cli.tables import console, plain_table
from stepwell.core.errors import UserError
from stepwell.core.registry import load, names
from stepwell.sim.bench import STEPS, Line, as_json
from stepwell.sim.bench_memory import LEAST_PAGES, PAGES, PROMPT_TOKENS, RUNNING, WAITING, bench_memory

_ROWS = (
    ("reserve, ns a page", "reserve_ns_per_page"),
    ("free", "free_ns_per_page"),
    ("grow by one page", "grow_ns_per_page"),
    ("publish", "publish_ns_per_page"),
    ("reserve what is found", "take_ns_per_page"),
    ("reserve by evicting", "evict_ns_per_page"),
    (f"look up {PROMPT_TOKENS:,} tokens, µs", "lookup_us"),
    ("of which half is found", "lookup_half_us"),
    (f"steady step, {RUNNING} running, µs", "steady_p50_us"),
    (f"step with changes, {WAITING} waiting", "change_p50_us"),
    ("of the pool empty when full", "fragmentation"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--allocator", action="append", metavar="NAME", help="only this one (may be repeated)")
    parser.add_argument("--pages", type=int, default=PAGES, metavar="N", help=f"in the pool ({PAGES})")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"timed steps a figure ({STEPS})")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    """Raises ``UserError`` for an unknown allocator, or a pool too small to say anything."""
    chosen = list(dict.fromkeys(args.allocator or names("allocators")))
    for name in chosen:
        load("allocators", name)
    if args.pages < LEAST_PAGES or args.steps < 1:
        raise UserError(
            f"must be at least {LEAST_PAGES} pages and 1 step, not {args.pages} and {args.steps}", field="pages"
        )
    lines = bench_memory(chosen, pages=args.pages, steps=args.steps)
    if args.json:
        for line in lines:
            print(as_json(line), flush=True)
    else:
        _tell(lines)
    return 0


def _tell(lines: Iterator[Line]) -> None:
    first, *rest = lines
    print(f"machine: {first['loop_ns_per_iteration']} ns an iteration of plain Python {first['python']};", end=" ")
    print(f"Stepwell's core is {first['build']}")
    print()
    console().print(_side_by_side(rest))


def _side_by_side(lines: Sequence[Line]) -> Table:
    table = plain_table("", *[str(line["allocator"]) for line in lines])
    for label, key in _ROWS:
        table.add_row(label, *[_shown(key, line[key]) for line in lines])
    return table


def _shown(key: str, value: object) -> str:
    if not isinstance(value, float | int):
        return "–"
    return f"{100 * value:.1f} %" if key == "fragmentation" else f"{value:,}"
