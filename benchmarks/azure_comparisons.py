"""Paged against contiguous memory, and continuous against static batching, on Azure's conversation trace.

    python -m stepwell.benchmarks.azure_comparisons --trace AzureLLMInferenceTrace_conv.csv
    python -m stepwell.benchmarks.azure_comparisons --trace … --limit 3000        the first 3,000 requests only

Simulated, so the figures do not depend on the machine: the linear cost model with its defaults, a pool of 131,072
tokens, a budget of 2,048 tokens a step.  Contiguous memory reserves the greatest length that a request may come to,
which nobody said, so it is ``max_context``: the whole trace needs 16,384, and most of it 4,096 (longer prompts and
answers are cut then).  Static batching is tried at many batch sizes, and the one with the highest throughput is taken.

Each set-up is measured twice: when all requests are there at once, for its throughput and how many run together, and
at one rate for all, for latencies.  One JSON object a line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from stepwell.core.config import Config, MemoryConfig, SchedulerConfig, validate
from stepwell.sim.run import simulate
from stepwell.sim.series import Series
from stepwell.sim.workload.request import Workload
from stepwell.sim.workload.trace import read_trace
from stepwell.sim.workload.transform import clip, limit, scale_rate

POOL_TOKENS = 131_072
PAGE = 16
RUNNING_LIMIT = 512
BATCH_SIZES = (2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
CONTEXTS = (16_384, 4_096)
LEAST_ANSWER = 1_024
"""What a cut prompt leaves room for."""

Line = dict[str, object]


def measure(workload: Workload, policy: str, allocator: str, max_context: int, batch_size: int = 0) -> Line:
    """One run to its end."""
    config = validate(
        Config(
            scheduler=SchedulerConfig(
                policy=policy,
                options={"batch_size": batch_size} if batch_size else {},
                token_budget=2_048,
                running_limit=RUNNING_LIMIT,
                max_context=max_context,
                max_waiting=1 << 30,
                max_waiting_tokens=1 << 40,
            ),
            memory=MemoryConfig(allocator=allocator, pages=POOL_TOKENS // PAGE, page_size=PAGE, host_pages=0),
        )
    )
    series = Series(every_ns=0)
    summary = simulate(config, workload=workload, observers=[series.observe]).summary
    spans = [later - earlier for earlier, later in pairwise(series.time_s)]
    together = sum(span * running for span, running in zip(spans, series.running, strict=False))
    return {
        "policy": policy,
        "allocator": allocator,
        "max_context": max_context,
        "batch_size": batch_size or None,
        "requests": summary.all.completed,
        "requests_per_s": round(summary.requests_per_s, 3),
        "output_tokens_per_s": round(summary.output_tokens_per_s, 1),
        "running_peak": max(series.running),
        "running_mean": round(together / sum(spans), 1),
        "ttft_p50_ms": _rounded(summary.all.ttft_ms.p50),
        "ttft_p99_ms": _rounded(summary.all.ttft_ms.p99),
        "tpot_p50_ms": _rounded(summary.all.tpot_ms.p50),
        "tpot_p99_ms": _rounded(summary.all.tpot_ms.p99),
        "recomputed": summary.preemptions_recompute,
    }


def _rounded(value_ms: float | None) -> float | None:
    return None if value_ms is None else round(value_ms, 1)


def compare(whole: Workload, max_context: int) -> Iterator[Line]:
    """All set-ups at one ``max_context``: at once, then at 0.8 of what the least of them can do, then at the trace's
    own rate."""
    workload = clip(whole, max_prompt=max_context - LEAST_ANSWER, max_output=LEAST_ANSWER)
    own_per_s = workload.profile().rate_per_s
    at_once = scale_rate(workload, 1e9)
    chosen: list[tuple[str, str, int]] = []
    speeds: list[float] = []
    for allocator in ("contiguous", "paged"):
        lines: list[Line] = []
        for size in BATCH_SIZES:
            lines.append(measure(at_once, "static", allocator, max_context, size))
            if int(str(lines[-1]["running_peak"])) < size:
                break  # the memory is full first, and a larger batch is no other one
        lines.append(measure(at_once, "fcfs", allocator, max_context))
        best = max(lines[:-1], key=lambda line: float(str(line["requests_per_s"])))
        for line in lines:
            yield {"load": "at once", "best": line is best or line is lines[-1]} | line
        for line in (best, lines[-1]):
            chosen.append((str(line["policy"]), allocator, int(str(line["batch_size"] or 0))))
            speeds.append(float(str(line["requests_per_s"])))
    for rate in (0.8 * min(speeds), own_per_s):
        scaled = scale_rate(workload, rate / own_per_s)
        for policy, allocator, size in chosen:
            line = measure(scaled, policy, allocator, max_context, size)
            yield {"load": f"{rate:.2f} requests/s", "best": True} | line


def main() -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE")
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="only the first N requests (all)")
    parser.add_argument("--max-context", type=int, choices=CONTEXTS, metavar="N", help="only this one")
    args = parser.parse_args()
    whole = read_trace(args.trace)
    if args.limit:
        whole = limit(whole, args.limit)
    for max_context in (args.max_context,) if args.max_context else CONTEXTS:
        for line in compare(whole, max_context):
            print(json.dumps({"bench": "azure"} | line), flush=True)


if __name__ == "__main__":
    main()
