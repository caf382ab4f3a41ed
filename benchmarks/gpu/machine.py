"""The environment: what is installed, which card it is, and what that reaches in the simplest cases."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import torch

from stepwell.benchmarks.gpu.bench import Bench
from stepwell.benchmarks.gpu.lines import Line, said
from stepwell.benchmarks.gpu.stopwatch import copy_bandwidth, matrix_rate

PACKAGES = ("torch", "triton", "numpy", "msgspec", "transformers")


def run(bench: Bench) -> None:
    bench.tell(said(bench.section, "software", ", ".join(software())))
    bench.tell(said(bench.section, "machine", ", ".join(hardware(bench))))
    bench.each("copy within the device", lambda: [copying(bench)])
    bench.each("square product", lambda: [product(bench)])
    bench.each("copies to and from the host", lambda: to_host(bench))


def software() -> Iterator[str]:
    yield f"Python {platform.python_version()}"
    for name in PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"no {name}"
    yield f"CUDA {torch.version.cuda}" if torch.version.cuda else "torch without CUDA"


def hardware(bench: Bench) -> Iterator[str]:
    yield f"{len(os.sched_getaffinity(0))} cores"
    if bench.card:
        told = torch.cuda.get_device_properties(bench.device)
        yield f"{told.name}, {told.total_memory / 2**30:.0f} GiB, {told.multi_processor_count} multiprocessors"
        yield f"compute capability {told.major}.{told.minor}"
    else:
        yield "no GPU: everything at toy size on the processor, Triton's kernels in its interpreter"


def copying(bench: Bench) -> Line:
    rate = copy_bandwidth(bench.stopwatch, bench.device, bench.scale.copied)
    return bench.line("copy within the device, bytes read and written", rate / 1e9, "GB/s")


def product(bench: Bench) -> Line:
    size = bench.scale.matrix
    rate = matrix_rate(bench.stopwatch, bench.device, size, bench.dtype)
    return bench.line(
        f"product of two {bench.scale.dtype} matrices of {size:,} rows and columns", rate / 1e12, "TFLOP/s"
    )


def to_host(bench: Bench) -> Iterator[Line]:
    """With pinned memory, one direction at a time."""
    count = bench.scale.copied // 4
    there = torch.zeros(count, dtype=torch.int8, device=bench.device)
    here = torch.zeros(count, dtype=torch.int8, pin_memory=bench.card)
    for what, target, source in (
        ("from the device to the host", here, there),
        ("from the host to the device", there, here),
    ):
        took_s = bench.stopwatch.seconds(lambda t=target, s=source: t.copy_(s, non_blocking=True))  # type: ignore[misc]
        yield bench.line(f"copy {what}", count / took_s / 1e9, "GB/s")
