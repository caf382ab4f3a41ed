"""What Triton's interpreter lacks, by which kernels run on tensors of the processor where there is no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def mend() -> None:
    """Makes the interpreter of Triton 3.6 take a number that was computed as the bound of a loop, which it reads in a
    way that NumPy 2.4 refuses, multiply matrices of bfloat16 by value instead of by bit pattern (Triton issue 11584),
    and prepare the language once a launch instead of in every call of a function, which took nearly all the time.
    May be called again; changes nothing of what is compiled."""
    if interpreter._patch_lang_tensor is _with_bounds:
        return
    _before.append(interpreter._patch_lang_tensor)
    _before.append(interpreter.InterpreterBuilder.create_dot)
    _before.append(interpreter._patch_lang)
    interpreter._patch_lang_tensor = _with_bounds
    interpreter.InterpreterBuilder.create_dot = _dot
    interpreter._patch_lang = _once_a_launch


_before: list[Any] = []
_prepared: list[Any] = []
"""Modules of the language that the launch under way uses."""


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


def _once_a_launch(function: Any) -> Any:
    """The scope of the launch, whose end is the end of all that was prepared in it; or an empty one."""
    used = [each for each in function.__globals__.values() if each is tl or each is tl.core]
    if all(any(each is other for other in _prepared) for each in used):
        return interpreter._LangPatchScope()
    scope = _before[2](function)
    _prepared.extend(used)
    restore = scope.restore

    def end() -> None:
        restore()
        _prepared.clear()

    scope.restore = end
    return scope
