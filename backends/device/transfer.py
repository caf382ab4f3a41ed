"""Small copies between host and device for which the host does not wait, or no longer than it must.

Pinned memory comes from torch's own cache, which does not give out again what a copy is still reading or writing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from stepwell.backends.batch import Ints


class Letter(Protocol):
    """Something on its way to the host."""

    def read(self) -> np.ndarray[Any, Any]:
        """Wait for it, and for nothing else."""
        ...


class Post(Protocol):
    """Between the host and one device."""

    def send(self, arrays: Sequence[Ints]) -> Sequence[Tensor]:
        """All of them (int64) in one copy; there for whatever the device does next."""
        ...

    def fetch(self, tensor: Tensor) -> Letter:
        """Begin to copy it to the host; whatever the device does after that may overwrite it."""
        ...


class Here:
    """The device is the host."""

    def send(self, arrays: Sequence[Ints]) -> Sequence[Tensor]:
        return [torch.from_numpy(each) for each in arrays]

    def fetch(self, tensor: Tensor) -> Letter:
        return _Arrived(tensor.clone())


class Pinned:
    """A CUDA device, through pinned memory and behind events."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def send(self, arrays: Sequence[Ints]) -> Sequence[Tensor]:
        counts = [len(each) for each in arrays]
        packed = torch.empty(sum(counts), dtype=torch.int64, pin_memory=True)
        np.concatenate(arrays, out=packed.numpy())
        sent = packed.to(self._device, non_blocking=True)
        return torch.split(sent, counts)

    def fetch(self, tensor: Tensor) -> Letter:
        here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        here.copy_(tensor, non_blocking=True)
        come = torch.cuda.Event()  # type: ignore[no-untyped-call]
        come.record()
        return _Awaited(here, come)


class _Arrived:
    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def read(self) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self._tensor.numpy()
        return found


class _Awaited:
    def __init__(self, tensor: Tensor, come: torch.cuda.Event) -> None:
        self._tensor, self._come = tensor, come

    def read(self) -> np.ndarray[Any, Any]:
        self._come.synchronize()
        found: np.ndarray[Any, Any] = self._tensor.numpy()
        return found


def post_of(device: torch.device) -> Post:
    """That device's."""
    return Pinned(device) if device.type == "cuda" else Here()
