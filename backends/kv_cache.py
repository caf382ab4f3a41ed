"""The pages themselves: keys and values on the device, and a pool of the same pages on the host for swap."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stepwell.backends.weights.source import ModelShape
from stepwell.core.instructions import CopyRow, PageCopy


def page_bytes(shape: ModelShape, page_size: int, dtype: torch.dtype) -> int:
    """Memory of one page: keys and values of every layer."""
    return 2 * shape.layers * page_size * shape.kv_heads * shape.head_dim * dtype.itemsize


class KVCache:
    """``keys`` and ``values``: [layers, pages + 1, page size, kv heads, dim].

    The page after the last belongs to nobody: rows that only fill a tile read and write there.  All pages begin as
    zeros, since what is masked is still multiplied (by zero), and zero times not-a-number is not a number.
    """

    def __init__(
        self, shape: ModelShape, pages: int, host_pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.pages, self.page_size = pages, page_size
        room = (shape.layers, pages + 1, page_size, shape.kv_heads, shape.head_dim)
        host_room = (shape.layers, host_pages, *room[2:])
        self.keys = torch.zeros(room, dtype=dtype, device=device)
        self.values = torch.zeros(room, dtype=dtype, device=device)
        self._host_keys = torch.zeros(host_room, dtype=dtype)
        self._host_values = torch.zeros(host_room, dtype=dtype)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        return self.keys[index], self.values[index]

    def swap_out(self, rows: Sequence[CopyRow]) -> None:
        """Copy device pages to host pages, all layers."""
        device, host = _pairs(rows)
        for here, there in ((self.keys, self._host_keys), (self.values, self._host_values)):
            for layer in range(here.shape[0]):
                there[layer].index_copy_(0, host, here[layer].index_select(0, device.to(here.device)).cpu())

    def swap_in(self, rows: Sequence[CopyRow]) -> None:
        """Copy host pages back to device pages."""
        device, host = _pairs(rows)
        for here, there in ((self.keys, self._host_keys), (self.values, self._host_values)):
            for layer in range(here.shape[0]):
                copied = there[layer].index_select(0, host).to(here.device)
                here[layer].index_copy_(0, device.to(here.device), copied)

    def copy(self, pages: Sequence[PageCopy]) -> None:
        """Copy device pages to device pages, all layers; everything is read before anything is written."""
        source, target = torch.tensor(pages, dtype=torch.int64, device=self.keys.device).unbind(1)
        self.keys[:, target] = self.keys[:, source]
        self.values[:, target] = self.values[:, source]

    def clear(self, pages: Sequence[int]) -> None:
        """Make pages harmless again that hold numbers which are not finite."""
        index = torch.tensor(list(pages), dtype=torch.int64, device=self.keys.device)
        self.keys[:, index] = 0
        self.values[:, index] = 0


def _pairs(rows: Sequence[CopyRow]) -> tuple[Tensor, Tensor]:
    """Device pages, and the host page of each."""
    here = [page for _, device, _ in rows for page in device]
    there = [page for _, _, host in rows for page in host]
    return torch.tensor(here, dtype=torch.int64), torch.tensor(there, dtype=torch.int64)
