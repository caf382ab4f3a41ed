"""The pages themselves: keys and values on the device, and a pool of the same pages on the host for swap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from stepwell.backends.device.streams import Streams, streams_of
from stepwell.backends.device.swap import PageKernels, PageMover
from stepwell.backends.kernels.pages import reference
from stepwell.backends.weights.source import ModelShape
from stepwell.core.instructions import PageCopy
from stepwell.core.types import Page


def page_bytes(shape: ModelShape, page_size: int, dtype: torch.dtype) -> int:
    """Memory of one page: keys and values of every layer."""
    return 2 * shape.layers * page_size * shape.kv_heads * shape.head_dim * dtype.itemsize


class KVCache:
    """``keys`` and ``values``: [layers, pages + 1, page size, kv heads, dim].

    The page after the last belongs to nobody: rows that only fill a tile read and write there.  All pages begin as
    zeros, since what is masked is still multiplied (by zero), and zero times not-a-number is not a number.

    Swaps run beside everything else: before a page is used, ``settle`` says so.
    """

    def __init__(
        self,
        shape: ModelShape,
        pages: int,
        host_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        kernels: PageKernels = reference,
        streams: Streams | None = None,
    ) -> None:
        self.pages, self.page_size = pages, page_size
        room = (shape.layers, pages + 1, page_size, shape.kv_heads, shape.head_dim)
        self.keys = torch.zeros(room, dtype=dtype, device=device)
        self.values = torch.zeros(room, dtype=dtype, device=device)
        self._kernels = kernels
        self._streams = streams or streams_of(device)
        self._mover = PageMover(self.keys, self.values, host_pages, kernels, self._streams)
        self.swap_out = self._mover.swap_out
        self.swap_in = self._mover.swap_in
        self.settle = self._mover.settle
        self.copy_ns = self._mover.copy_ns

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        return self.keys[index], self.values[index]

    def copy(self, pages: Sequence[PageCopy]) -> None:
        """Copy device pages to device pages, all layers; everything is read before anything is written."""
        self.settle(page for pair in pages for page in pair)
        sources, targets = (self._streams.index(each) for each in zip(*pages, strict=True))
        self._kernels.copy_pages(self.keys, self.values, sources, targets)

    def clear(self, pages: Iterable[Page]) -> None:
        """Make pages harmless again that hold numbers which are not finite."""
        index = list(pages)
        self.settle(index)
        cleared = self._streams.index(index)
        self.keys[:, cleared] = 0
        self.values[:, cleared] = 0
