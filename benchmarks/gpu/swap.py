"""Pages to the host and back beside what the card computes: how fast, and how much of it is hidden."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from stepwell.backends.device.streams import streams_of
from stepwell.backends.device.swap import PageMover
from stepwell.backends.kernels.pages import triton as pages
from stepwell.benchmarks.gpu.bench import Bench
from stepwell.benchmarks.gpu.inputs import draw, heads_of
from stepwell.benchmarks.gpu.lines import Line

_REPEATS = 3


def swaps(bench: Bench) -> Iterator[Line]:
    heads, count = heads_of(bench), bench.scale.swapped
    room = (bench.scale.model["layers"], count + 1, heads.page_size, heads.kv, heads.dim)
    keys, values = draw(bench, *room), draw(bench, *room)
    mover = PageMover(keys, values, count, pages, streams_of(bench.device))
    here, there = torch.randperm(count).tolist(), list(range(count))
    moved = 2 * keys[:, :count].nbytes

    def swap(way: Callable[..., None]) -> None:
        way([(1, here, there)])
        mover.settle(here)

    left = draw(bench, bench.scale.matrix, bench.scale.matrix)

    def compute(products: int) -> None:
        for _ in range(products):
            torch.mm(left, left)

    one_s = waited_s(bench, lambda: compute(1))
    for what, way in (("to the host", mover.swap_out), ("back to the device", mover.swap_in)):
        bench.check()
        swap_s = waited_s(bench, lambda: swap(way))  # noqa: B023
        yield bench.line(f"swap {what}, {count:,} pages", moved / swap_s / 1e9, "GB/s", "", f"{swap_s * 1e3:.1f} ms")
        products = max(1, round(swap_s / one_s))
        compute_s = waited_s(bench, lambda: compute(products))  # noqa: B023

        def both() -> None:
            way([(1, here, there)])  # noqa: B023
            compute(products)  # noqa: B023
            mover.settle(here)

        both_s = waited_s(bench, both)
        hidden = (swap_s + compute_s - both_s) / min(swap_s, compute_s)
        note = f"{compute_s * 1e3:.1f} ms of products beside it, {both_s * 1e3:.1f} ms together"
        yield bench.line(f"swap {what}: of it behind products", 100 * hidden, "%", "", note)


def waited_s(bench: Bench, work: Callable[[], None]) -> float:
    """Seconds until the device is done with it, at best."""
    best_s = float("inf")
    for _ in range(_REPEATS if bench.card else 1):
        if bench.card:
            torch.cuda.synchronize()
        start_ns = time.perf_counter_ns()
        work()
        if bench.card:
            torch.cuda.synchronize()
        best_s = min(best_s, (time.perf_counter_ns() - start_ns) / 1e9)
    return best_s
