"""The helper that finds kernels which write too little or too much finds them."""

from __future__ import annotations

from stepwell.tests.helpers import kernels  # skips where there is no Triton  # isort: skip

import pytest
import torch
import triton
import triton.language as tl

from stepwell.tests.helpers.kernels import Guarded


@triton.jit  # type: ignore[untyped-decorator]
def _fill(out, first, last, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    at = first + tl.arange(0, BLOCK)
    tl.store(out + at, at.to(tl.float32), mask=at < last)  # (the interpreter makes no bfloat16 of an integer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("first", "last", "complaint"), [(0, 6, ""), (0, 5, "not written"), (-1, 6, "before"), (0, 7, "behind")]
)
def test_what_a_kernel_writes_is_watched(dtype: torch.dtype, first: int, last: int, complaint: str) -> None:
    out = Guarded(2, 3, dtype=dtype)
    _fill[(1,)](out.tensor, first, last, BLOCK=16)
    if complaint:
        with pytest.raises(AssertionError, match=complaint):
            out.check()
    else:
        out.check()
        assert out.tensor.flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_kernels_are_interpreted_where_there_is_no_gpu() -> None:
    assert kernels.DEVICE.type == (
        "cuda" if torch.cuda.is_available() and not triton.knobs.runtime.interpret else "cpu"
    )
