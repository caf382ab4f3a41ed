"""What tests of kernels share: outputs that show what was not written, and guards around them.

Skips the module that imports it where Triton or torch is not installed.  On a machine with a GPU,
``TRITON_INTERPRET=0 pytest tests/backends/kernels`` runs the same tests on it.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs the extra `model`")
pytest.importorskip("triton", reason="needs the extra `cuda`")

import torch
import triton
from torch import Tensor

DEVICE = torch.device("cpu" if triton.knobs.runtime.interpret or not torch.cuda.is_available() else "cuda")
"""Where the kernels run: interpreted, on tensors of the processor, unless there is a GPU and the tests may use it."""

_GUARD = 64
"""Elements before and behind a guarded tensor."""


def poison(dtype: torch.dtype) -> float | int | bool:
    """A value that no kernel writes by chance: NaN, or the least integer."""
    if dtype.is_floating_point:
        return float("nan")
    return False if dtype == torch.bool else int(torch.iinfo(dtype).min)


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    """A tensor in which what is not written shows."""
    return torch.full(shape, poison(dtype), dtype=dtype, device=DEVICE)


class Guarded:
    """A poisoned ``tensor`` inside a larger buffer, to be given to a kernel as its output."""

    def __init__(self, *shape: int, dtype: torch.dtype) -> None:
        count = torch.Size(shape).numel()
        self._buffer = torch.zeros(count + 2 * _GUARD, dtype=dtype, device=DEVICE)
        self._buffer.view(torch.uint8).fill_(0x5A if dtype != torch.bool else 1)
        self._before = self._buffer.clone()
        self.tensor = self._buffer[_GUARD : _GUARD + count].view(shape)
        self.tensor.fill_(poison(dtype))

    def check(self) -> None:
        """Nothing beside the tensor was touched, and no element of it was left out."""
        for side in (slice(None, _GUARD), slice(len(self._buffer) - _GUARD, None)):
            assert torch.equal(self._buffer[side].view(torch.uint8), self._before[side].view(torch.uint8)), (
                f"written outside of the output, {'before' if side.start is None else 'behind'} it"
            )
        if self.tensor.dtype.is_floating_point:
            assert not self.tensor.isnan().any(), "elements were not written, or are no numbers"
        elif self.tensor.dtype != torch.bool:
            assert not (self.tensor == poison(self.tensor.dtype)).any(), "elements were not written"
