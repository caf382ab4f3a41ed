"""Outputs and inputs whose rows lie apart in memory, as those of a part of a larger tensor do."""

from __future__ import annotations

from stepwell.tests.helpers.kernels import DEVICE, Guarded  # skips where there is no Triton  # isort: skip

import torch
from torch import Tensor


class GuardedRows:
    """``tensor`` of that shape is an output: rows (the first axis) lie ``gap`` numbers apart, poison between them."""

    def __init__(self, *shape: int, dtype: torch.dtype, gap: int = 0) -> None:
        row = torch.Size(shape[1:]).numel()
        self._whole = Guarded(shape[0], row + gap, dtype=dtype)
        self._gaps = self._whole.tensor[:, row:]
        self.tensor = self._whole.tensor[:, :row].unflatten(1, shape[1:])

    def check(self) -> None:
        """Everything was written that is to be, and nothing else."""
        assert self._gaps.isnan().all(), "written between the rows"
        kept = self._gaps.clone()
        self._gaps.zero_()
        self._whole.check()
        self._gaps.copy_(kept)


def spaced(tensor: Tensor, gap: int) -> Tensor:
    """The same numbers on the device of the tests, rows ``gap`` numbers apart, not-a-number between them."""
    made: Tensor = GuardedRows(*tensor.shape, dtype=tensor.dtype, gap=gap).tensor
    return made.copy_(tensor.to(DEVICE))


_ROUNDED = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Half a unit in the last place, as a part of the number, at most."""


def assert_near(found: Tensor, truth: Tensor, *, sums: float = 4e-6, interpreted: bool = False) -> None:
    """``truth`` is float64: rounding it once is allowed, and an error of ``sums`` before that, in float32.

    ``interpreted``: Triton's interpreter cuts bfloat16 off where hardware rounds it.
    """
    rounded = _ROUNDED[found.dtype] * (2 if interpreted and found.dtype == torch.bfloat16 else 1)
    allowed = 1.01 * rounded * truth.abs() + sums * truth.abs().clamp(min=1)
    error = (found.double() - truth).abs()
    assert (error <= allowed).all(), f"off by {(error - allowed).max():g} more than allowed"
