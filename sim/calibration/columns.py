"""What fits have in common: measured steps as columns of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.sim.calibration.least_squares import Floats, robust
from stepwell.sim.step_reader import MeasuredStep

COUNT_OF = {
    "prefill_token_ns": "prefill_tokens",
    "prefill_request_ns": "prefill_requests",
    "decode_request_ns": "decode_requests",
    "kv_token_ps": "kv_tokens",
    "prefill_pair_ps": "prefill_pairs",
    "swap_page_ns": "swap_pages",
    "copy_page_ns": "copied_pages",
}
"""What each coefficient is of, whichever model has it."""


TELLING = 30
"""Steps that have some of what a coefficient is of, at least, for it to be fitted: from fewer, noise would be."""


def counts(steps: Sequence[MeasuredStep], count: str) -> Floats:
    """One count of every step's shape."""
    return np.array([getattr(each.shape, count) for each in steps], np.float64)


def evidence(steps: Sequence[MeasuredStep], coefficient: str) -> int:
    """How many steps say anything of it."""
    return int(np.count_nonzero(counts(steps, COUNT_OF[coefficient])))


def without_copies(steps: Sequence[MeasuredStep]) -> tuple[Floats, float]:
    """The steps' times less what their copies to and from the host took where that was told, and what a page took (0:
    nobody told)."""
    pages = counts(steps, "swap_pages")
    copies = np.array([each.copy_ns for each in steps], np.float64)
    times = np.array([each.period_ns for each in steps], np.float64)
    told = (pages > 0) & (copies > 0) & (copies < times)
    if not told.any():
        return times, 0.0
    page_ns = float(robust(pages[told][:, None], copies[told])[0])
    return np.where(told, times - copies, times), page_ns
