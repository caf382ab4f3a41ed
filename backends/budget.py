"""How much memory there is, and how much a step takes: measured, not guessed."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import torch

_MIB = 1 << 20


def available_bytes(device: torch.device) -> int:
    """Memory that may be taken now: of the device, or of the machine and the control group this process is in."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    bounds = [_field(Path("/proc/meminfo"), "MemAvailable:")]
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        most, now = _number(Path(limit)), _number(Path(used))
        if most and now is not None:
            bounds.append(max(most - now, 0))
    return min([each for each in bounds if each is not None], default=1 << 62)


def peak_bytes(device: torch.device, work: Callable[[], object]) -> int:
    """Memory that ``work`` needed at its peak, beyond what there was before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return int(torch.cuda.max_memory_allocated(device)) - int(before)
    status = Path("/proc/self/status")
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        before_kib = _field(status, "VmRSS:")
    except OSError:
        before_kib = None
    if before_kib is None:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        work()
        return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used, 0) * 1024
    work()
    return max((_field(status, "VmHWM:") or 0) - before_kib, 0)


def mib(count: int) -> str:
    """A size to be read."""
    return f"{count / _MIB:,.0f} MiB"


def _field(path: Path, name: str) -> int | None:
    """A line such as ``VmRSS:  1234 kB``, in bytes."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)


def _number(path: Path) -> int | None:
    """None where there is no such file, or no limit."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None
