"""What Triton's interpreter lacks, by which kernels run on tensors of the processor where there is no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def mend() -> None:
    """Makes the interpreter of Triton 3.6 take a number that was computed as the bound of a loop, which it reads in a
    way that NumPy 2.4 refuses, and multiply matrices of bfloat16 by value instead of by bit pattern (Triton issue
    11584).  May be called again; changes nothing of what is compiled."""
    if interpreter._patch_lang_tensor is _with_bounds:
        return
    _before.append(interpreter._patch_lang_tensor)
    _before.append(interpreter.InterpreterBuilder.create_dot)
    interpreter._patch_lang_tensor = _with_bounds
    interpreter.InterpreterBuilder.create_dot = _dot


_before: list[Any] = []


def _with_bounds(tensor: Any, scope: Any) -> None:
    _before[0](tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def _dot(builder: Any, left: Any, right: Any, *rest: Any) -> Any:
    return _before[1](builder, _widened(left), _widened(right), *rest)


def _widened(handle: Any) -> Any:
    """Numbers of bfloat16 are kept as the upper halves of those of float32."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    data = (handle.data.astype(np.uint32) << 16).view(np.float32)
    return interpreter.TensorHandle(data, tl.float32)
