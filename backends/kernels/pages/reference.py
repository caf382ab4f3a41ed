"""Whole pages copied, all layers at once, in plain torch.

Pools are [layers, pages + 1, page size, kv heads, dim]; staged pages [pages, 2, layers, page size, kv heads, dim], keys
before values, so that a swap is one gather on the device and one copy of contiguous memory.
"""

from __future__ import annotations

from torch import Tensor


def copy_pages(keys: Tensor, values: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Page ``sources[i]`` to page ``targets[i]`` (int64); everything is read before anything is written."""
    sources, targets = sources.to(keys.device), targets.to(keys.device)
    keys[:, targets] = keys[:, sources]
    values[:, targets] = values[:, sources]


def gather_pages(keys: Tensor, values: Tensor, pages: Tensor, *, out: Tensor) -> Tensor:
    """Pages out of the pools into ``out``."""
    pages = pages.to(keys.device)
    out[:, 0] = keys[:, pages].transpose(0, 1)
    out[:, 1] = values[:, pages].transpose(0, 1)
    return out


def scatter_pages(staged: Tensor, keys: Tensor, values: Tensor, pages: Tensor) -> None:
    """Staged pages back into the pools."""
    pages = pages.to(keys.device)
    keys[:, pages] = staged[:, 0].transpose(0, 1)
    values[:, pages] = staged[:, 1].transpose(0, 1)
