"""Drives sched-sim's own simulator; runs in an environment that has sched-sim and needs nothing of Stepwell.

    python simulators_real.py REQUESTS

A line of ``REQUESTS`` is ``[arrival in seconds, prompt tokens, output tokens]``.  Step time, page pool and token budget
are those of the common workload.  Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from sched_sim.core.event_engine import Simulator
from sched_sim.core.request import Request
from sched_sim.hardware.presets import get_hardware_profile
from sched_sim.memory.block_manager import BlockManager
from sched_sim.memory.preemption import PreemptionHandler, PreemptionMode
from sched_sim.schedulers.chunked import ChunkedPrefillScheduler

PAGES, PAGE_SIZE, BUDGET, RUNNING = 8192, 16, 2048, 256


class StepTime:
    """6 ms, 30 µs a prefill token, 20 µs a decoding request, 60 ns a KV token read; seconds."""

    launch_overhead_s = 0.006

    def compute_prefill_step_time(self, prefill: int) -> float:
        return self.compute_mixed_step_time(prefill, 0, 0)

    def compute_decode_step_time(self, decoding: int, kv: int) -> float:
        return self.compute_mixed_step_time(0, decoding, kv)

    def compute_mixed_step_time(self, prefill: int, decoding: int, kv: int) -> float:
        return 0.006 + 30e-6 * prefill + 20e-6 * decoding + 60e-9 * kv


def simulator() -> Any:
    """Its chunked prefill (first come, first served) on the common machine.  It has no limit of running requests."""
    hardware = get_hardware_profile("a100")
    blocks = BlockManager(hardware, block_size=PAGE_SIZE)
    blocks.total_gpu_blocks = PAGES
    blocks.free_gpu_blocks = list(range(PAGES))
    handler = PreemptionHandler(blocks, PreemptionMode.RECOMPUTE)
    scheduler = ChunkedPrefillScheduler(blocks, StepTime(), handler, max_batch_size=RUNNING, max_token_budget=BUDGET)
    return Simulator(hardware, scheduler, block_size=PAGE_SIZE)


def peak_mb() -> float:
    """Of this process alone: ``ru_maxrss`` of a child begins with its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    requests = [
        Request(request_id=f"r{place}", arrived_at=at_s, prompt_tokens=prompt, output_tokens=output)
        for place, (at_s, prompt, output) in enumerate(rows)
    ]
    simulated = simulator()
    simulated.submit_workload(requests)
    start_s = time.process_time()
    simulated.run()
    cpu_s = time.process_time() - start_s
    finished = [each for each in requests if each.completed_at is not None]
    first_s = [each.first_token_at - each.arrived_at for each in finished]
    whole_s = [each.completed_at - each.arrived_at for each in finished]
    told = {
        "cpu_s": cpu_s,
        "steps": len(simulated.iteration_records),
        "finished": len(finished),
        "ttft_mean_ms": 1000 * sum(first_s) / len(first_s),
        "e2e_mean_ms": 1000 * sum(whole_s) / len(whole_s),
        "rss_mb": peak_mb(),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
