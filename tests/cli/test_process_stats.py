"""What the kernel knows of a process and of the machine."""

from __future__ import annotations

import os
import time

from stepwell.cli.process_stats import busy_s, cpu_s

TICKS_S = 0.05
"""A few of the kernel's."""


def test_a_busy_process_keeps_the_machine_busy_at_least_as_long() -> None:
    """Its time, the machine's, and the clock's agree, but for ticks."""
    machine_s, own_s, began_s = busy_s(), cpu_s(os.getpid()), time.process_time()
    while time.process_time() < began_s + 0.3:
        pass
    assert abs(cpu_s(os.getpid()) - own_s - 0.3) < TICKS_S
    assert busy_s() - machine_s >= 0.3 - TICKS_S
