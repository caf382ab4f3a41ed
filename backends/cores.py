"""How many cores computing may take."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def spare_cores() -> int:
    """All that this process may use but one, and at least one.

    All threads of a product wait for the slowest, so one that shares its core with another process stops them all for
    as long as the system lets that process run: a product of 0.1 ms was then seen to take 12.  Where nothing else ran,
    the second of two cores added a fifth to prefill, and a third to decoding 64 requests.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # torch counts cores without their second threads, and heeds OMP_NUM_THREADS.
    return max(min(allowed, torch.get_num_threads(), _quota(Path("/sys/fs/cgroup/cpu.max"))) - 1, 1)


def _quota(path: Path) -> int:
    """Whole cores that a container's share of the processor amounts to; many if there is no limit."""
    try:
        most, period = path.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return 1 << 16
    return max(int(most) // int(period), 1) if most.isdigit() else 1 << 16
