"""What a CUDA graph does, without a card: operations are written down with the memory they work on, and done again.

Whatever the recorded code asked of the host (a number, a branch, a Python list) stays as it was at the recording, and
results lie where they lay; so code that a graph would get wrong, this gets wrong too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_WAITS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "unique_dim", "_unique2"}
"""Operations for whose result the host waits, or whose result's size is not known before: no graph holds them."""

Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any], Any]


class Tape:
    """A ``graphs.Recorder``; ``repeated`` counts by size of recording (in the order of recordings)."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.repeated: list[int] = []

    def record(self, work: Callable[[], object]) -> Callable[[], object]:
        work()
        with _Writing() as written:
            work()
        self.taken.append(len(written.calls))
        self.repeated.append(0)
        return partial(self._again, len(self.repeated) - 1, written.calls)

    def _again(self, number: int, calls: Sequence[Call]) -> None:
        self.repeated[number] += 1
        for function, arguments, named, made in calls:
            anew = function(*arguments, **named)
            for old, new in zip(tree_leaves(made), tree_leaves(anew), strict=True):
                if isinstance(old, Tensor) and old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)


class _Writing(TorchDispatchMode):
    """Writes down every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        waits = name in _WAITS or (
            name == "index" and any(each is not None and each.dtype == torch.bool for each in args[1])
        )
        assert not waits, f"{name} cannot be recorded in a graph"
        made = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, made))
        return made


def refusal(work: Callable[[], object]) -> str:
    """Why ``work`` cannot be recorded; empty if it can."""
    try:
        with torch.inference_mode():
            Tape().record(work)
    except AssertionError as error:
        return str(error)
    return ""
