"""The production engine and its scheduler on a model of random weights: tokens a second, and what the host takes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from statistics import median

import torch

from stepwell.backends.device.graphs import Recorder
from stepwell.backends.kernels.choose import Asked
from stepwell.backends.kv_cache import page_bytes
from stepwell.backends.torch_backend import TorchBackend
from stepwell.backends.weights.source import ModelShape
from stepwell.benchmarks.gpu.bench import Bench
from stepwell.benchmarks.gpu.device_time import StepClock
from stepwell.benchmarks.gpu.driving import Driver, drive
from stepwell.benchmarks.gpu.lines import Line
from stepwell.benchmarks.gpu.scale import Decoding
from stepwell.benchmarks.gpu.source import random_source
from stepwell.benchmarks.gpu.stopwatch import copy_bandwidth
from stepwell.benchmarks.gpu.swap import swaps
from stepwell.core.config import Config, MemoryConfig, SchedulerConfig, validate
from stepwell.core.registry import complete

_SPARE_BYTES = 8 << 30
"""Beside weights and pages: activations of a largest step, recorded steps, what the libraries take."""


def run(bench: Bench) -> None:
    bench.each("decode and prefill", lambda: served(bench), "streaming")
    bench.each("host gap", lambda: gaps(bench), "gap")
    bench.each("swap", lambda: swaps(bench))


def config_of(bench: Bench, pages: int, host_pages: int = 0, *, running: int = 0) -> Config:
    """A plain server: first come, first served, pages enough."""
    running = running or max(each.requests for each in bench.scale.decoding)
    return complete(
        validate(
            Config(
                scheduler=SchedulerConfig(
                    policy="fcfs", running_limit=running, token_budget=bench.scale.budget, max_context=0
                ),
                memory=MemoryConfig(
                    allocator="paged", pages=pages, page_size=bench.scale.page_size, host_pages=host_pages
                ),
            )
        )
    )


def backend_of(
    bench: Bench,
    config: Config,
    *,
    kernels: Asked = "triton",
    graphs: bool = True,
    recorder_of: Callable[[], Recorder] | None = None,
) -> TorchBackend:
    """The backend for it, with Triton's kernels unless others are asked for."""
    gc.collect()
    if bench.card:
        torch.cuda.empty_cache()  # of the backend before
    device = str(bench.device)
    options = TorchBackend.Options(dtype=bench.scale.dtype, device=device, kernels=kernels, graphs=graphs)
    memory, scheduler = config.memory, config.scheduler
    return TorchBackend(
        options,
        pages=memory.pages,
        page_size=memory.page_size,
        host_pages=memory.host_pages,
        token_budget=scheduler.token_budget,
        running_limit=scheduler.running_limit,
        source=random_source(bench.scale.model, bench.device, bench.dtype),
        recorder_of=recorder_of,
    )


def pages_for(bench: Bench, it: Decoding) -> int:
    return it.requests * (-(-(it.context + answer(bench, it)) // bench.scale.page_size) + 1)


def answer(bench: Bench, it: Decoding) -> int:
    """Tokens of each answer: some come while others' prompts are still being computed, and are not timed."""
    return it.tokens + -(-it.requests * it.context // (bench.scale.budget * 3 // 4))


def room(bench: Bench) -> int:
    """Pages that the card has room for, at most as many as are needed."""
    needed = max(pages_for(bench, each) for each in bench.scale.decoding)
    if not bench.card:
        return needed
    shape = ModelShape(**bench.scale.model)
    weights = 2 * sum(torch.Size(each).numel() for each in shape.parameters().values())
    free = torch.cuda.mem_get_info(bench.device)[0] - weights - _SPARE_BYTES
    return min(needed, free // page_bytes(shape, bench.scale.page_size, bench.dtype))


def served(bench: Bench) -> Iterator[Line]:
    limit = streaming_limit(bench)
    config = config_of(bench, room(bench))
    backend = backend_of(bench, config)

    async def work(driver: Driver) -> None:
        await driver.played(driver.prompts(2, 8), 4)  # whatever is made at the first time is made now
        for it in bench.scale.decoding:
            bench.check()
            if pages_for(bench, it) > config.memory.pages:
                why = f"needs {pages_for(bench, it):,} pages, and there is room for {config.memory.pages:,}"
                bench.tell(bench.missing(f"decode, {it.requests} × {it.context:,}", why))
                continue
            await decoded(bench, driver, it, limit)
        bench.check()
        requests, length = bench.scale.prefilling
        took_s = await driver.played(driver.prompts(requests, length), 1)
        bench.tell(bench.line(f"prefill, {requests} × {length:,}", requests * length / took_s, "tokens/s"))

    drive(config, backend, work)
    yield from ()


async def decoded(bench: Bench, driver: Driver, it: Decoding, limit: float) -> None:
    await driver.played(driver.prompts(it.requests, it.context), answer(bench, it))
    periods_s = driver.decode_s(it.requests)
    what = f"decode, {it.requests} × {it.context:,}"
    if not periods_s:
        bench.tell(bench.missing(what, "no step had all of them"))
        return
    step_s = median(periods_s)
    note = f"{step_s * 1e3:.2f} ms a step, median of {len(periods_s)}"
    bench.tell(bench.line(what, it.requests / step_s, "tokens/s", "", note, step_s=step_s))
    if it.requests == 1:
        share = 100 / step_s / limit
        what = "decode at batch 1, of what reading the weights allows"
        bench.tell(bench.line(what, share, "%", "streaming", f"{limit:,.0f} tokens/s at the bandwidth of a copy"))


def streaming_limit(bench: Bench) -> float:
    """Tokens a second of one request if a step did nothing but read every weight once at a copy's bandwidth; of the
    embedding one row is read."""
    shape = ModelShape(**bench.scale.model)
    read = sum(torch.Size(size).numel() for name, size in shape.parameters().items() if "embed_tokens" not in name)
    return copy_bandwidth(bench.stopwatch, bench.device, bench.scale.copied) / (read * bench.dtype.itemsize)


def gaps(bench: Bench) -> Iterator[Line]:
    """The same steps with their kernels recorded in a graph, and launched one by one."""
    it, clock = bench.scale.gap, StepClock(bench.device)
    config = config_of(bench, pages_for(bench, it), running=it.requests)
    recorded_s = stepped(bench, config, backend_of(bench, config, recorder_of=clock.recorder))
    # Launched one by one, kernels wait for the host in between; what they take is what they took in the graph.
    device_s = median(clock.seconds()[-len(recorded_s) :])
    yield gap(bench, "graphs", median(recorded_s), device_s, "gap")
    bench.check()
    by_hand_s = stepped(bench, config, backend_of(bench, config, graphs=False))
    yield gap(bench, "no graphs", median(by_hand_s), device_s)


def gap(bench: Bench, how: str, step_s: float, device_s: float, target: str = "") -> Line:
    what = f"host gap, {bench.scale.gap.requests} × {bench.scale.gap.context:,}, {how}"
    note = f"{(step_s - device_s) * 1e6:,.0f} of {step_s * 1e6:,.0f} µs a step"
    share = 100 * (1 - device_s / step_s)
    return bench.line(what, share, "% of a step", target, note, step_s=step_s, device_s=device_s)


def stepped(bench: Bench, config: Config, backend: TorchBackend) -> list[float]:
    """Seconds of each step in which all requests of the gap's figure decode."""
    it = bench.scale.gap
    found: list[float] = []

    async def work(driver: Driver) -> None:
        await driver.played(driver.prompts(it.requests, it.context), answer(bench, it))
        found.extend(driver.decode_s(it.requests))

    drive(config, backend, work)
    return found
