"""Coefficients of the cost model ``linear`` from measured steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.sim.calibration.least_squares import Floats, robust
from stepwell.sim.calibration.measured import MeasuredStep
from stepwell.sim.cost.linear import PS_PER_NS, Linear

_COUNT_OF = {
    "prefill_token_ns": "prefill_tokens",
    "prefill_request_ns": "prefill_requests",
    "decode_request_ns": "decode_requests",
    "kv_token_ps": "kv_tokens",
    "swap_page_ns": "swap_pages",
    "copy_page_ns": "copied_pages",
}
"""What each coefficient beside ``base_ns`` is of."""


def fit_linear(steps: Sequence[MeasuredStep]) -> tuple[dict[str, object], list[str]]:
    """The options of ``Linear`` that come closest, and those that keep their default as no step had what they are of."""
    seen = [name for name, count in _COUNT_OF.items() if any(getattr(each.shape, count) for each in steps)]
    assumed = [name for name in _COUNT_OF if name not in seen]
    rest_ns, page_ns = without_copies(steps)
    columns = [np.ones(len(steps)), *(_counts(steps, _COUNT_OF[name]) for name in seen)]
    base_ns, *found = robust(np.stack(columns, axis=1), rest_ns)
    options: dict[str, object] = {"base_ns": max(1, round(base_ns))}
    default = Linear.Options()
    options |= {name: getattr(default, name) for name in assumed}
    for name, value in zip(seen, found, strict=True):
        more = page_ns if name == "swap_page_ns" else 0.0
        options[name] = round((value + more) * (PS_PER_NS if name.endswith("_ps") else 1))
    return options, assumed


def without_copies(steps: Sequence[MeasuredStep]) -> tuple[Floats, float]:
    """The steps' times less what their copies to and from the host took where that was told, and what a page took (0:
    nobody told)."""
    pages = _counts(steps, "swap_pages")
    copies = np.array([each.copy_ns for each in steps], np.float64)
    times = np.array([each.period_ns for each in steps], np.float64)
    told = (pages > 0) & (copies > 0) & (copies < times)
    if not told.any():
        return times, 0.0
    page_ns = float(robust(pages[told][:, None], copies[told])[0])
    return np.where(told, times - copies, times), page_ns


def _counts(steps: Sequence[MeasuredStep], count: str) -> Floats:
    return np.array([getattr(each.shape, count) for each in steps], np.float64)
