"""What a model on a device is computed with, besides matrix products: the operations that a suite of kernels has.

Each operation is described where its plain truth is, in ``kernels/<op>/reference.py``.  Index tensors are int32 unless
said; "layer" is one layer's keys or values, [pages + 1, page size, kv heads, dim], of which the last page belongs to
nobody; "pool" is all layers of it.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from stepwell.backends.kernels.sampling.columns import Sides


class Kernels(Protocol):
    """One implementation of every operation.  None of them waits for the device, so all may be recorded in a graph,
    except those that take page numbers from the host (pages are copied between steps)."""

    @property
    def name(self) -> str: ...

    def add_norm(
        self,
        states: Tensor,
        added: Tensor | None,
        weight: Tensor,
        eps: float,
        dtype: torch.dtype,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """``states`` [rows, hidden] float32 grows by ``added``, in place; returns its norm in ``dtype``."""
        ...

    def rotate_and_write(
        self,
        qkv: Tensor,
        positions: Tensor,
        frequencies: Tensor,
        slots: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        heads: int,
        out: Tensor | None = None,
    ) -> Tensor:
        """Turns queries and keys of ``qkv`` [rows, heads + 2 × kv heads, dim], writes keys and values to their slots
        (int64) of a layer, and returns the queries [rows, heads, dim]."""
        ...

    def swiglu(self, gate_up: Tensor, *, out: Tensor | None = None) -> Tensor:
        """silu(gate) × up of [rows, 2 × inner]."""
        ...

    def paged_decode(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        tables: Tensor,
        lengths: Tensor,
        *,
        window: int = 0,
        longest: int = 0,
        out: Tensor | None = None,
    ) -> Tensor:
        """Attention of one query for each row [rows, heads, dim] to the first ``lengths`` positions of its pages; of
        length 0: zeros.  ``longest`` bounds the lengths, as far as the host knows (0: what ``tables`` can hold)."""
        ...

    def paged_prefill(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        tables: Tensor,
        firsts: Tensor,
        starts: Tensor,
        *,
        longest_slice: int,
        window: int = 0,
        out: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of slices: rows ``firsts[i]`` … ``firsts[i + 1] - 1`` are positions ``starts[i]`` … of the
        request whose pages are ``tables[i]``, where their own keys lie already."""
        ...

    def sample(
        self,
        logits: Tensor,
        words: Tensor,
        lengths: Tensor,
        *,
        sides: Sides,
        out: Tensor | None = None,
        finite: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The next token of each row (int64) by its column of ``words``, and whether its scores are numbers (bool).
        ``lengths`` are the tokens known, and so the position of the one that is drawn."""
        ...

    def copy_pages(self, keys: Tensor, values: Tensor, sources: Tensor, targets: Tensor) -> None:
        """Pages of the pools to other pages, all layers (int64); everything is read before anything is written."""
        ...

    def gather_pages(self, keys: Tensor, values: Tensor, pages: Tensor, *, out: Tensor) -> Tensor:
        """Pages (int64) out of the pools, into [pages, 2, layers, page size, kv heads, dim]."""
        ...

    def scatter_pages(self, staged: Tensor, keys: Tensor, values: Tensor, pages: Tensor) -> None:
        """Back into the pools."""
        ...
