"""Requests in a pool of pages where everything that is nobody's, or somebody else's, is not a number; and the truth."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stepwell.tests.helpers.kernels import DEVICE

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
"""Half a unit in the last place of 1, or what sums in float32 lose."""


class Pool:
    """Requests that know ``lengths`` positions each; ``tables`` [requests, width] say where.

    Numbers are drawn for position after position, so the same seed gives the same keys at any page size.
    """

    def __init__(
        self, lengths: Sequence[int], page_size: int, kv_heads: int, dim: int, dtype: torch.dtype, seed: int = 0
    ) -> None:
        draw, shuffle = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        self.lengths, self.page_size, self.dtype = list(lengths), page_size, dtype
        needed = [-(-length // page_size) for length in lengths]
        nowhere = sum(needed) + 1  # one more page is somebody else's
        # The second of three layers: pages do not lie side by side from the beginning of memory on.
        pools = torch.full((2, 3, nowhere + 1, page_size, kv_heads, dim), torch.nan, dtype=dtype)
        self.keys, self.values = pools[0, 1], pools[1, 1]
        self.tables = torch.full((len(lengths), max([*needed, 0]) + 1), nowhere, dtype=torch.int32)
        pages = torch.randperm(nowhere, generator=shuffle)[: sum(needed)].split(needed)
        self._known: list[tuple[Tensor, Tensor]] = []
        for index, (length, mine) in enumerate(zip(lengths, pages, strict=True)):
            self.tables[index, : len(mine)] = mine
            drawn = torch.randn((length, 2, kv_heads, dim), generator=draw).to(dtype)
            self._known.append((drawn[:, 0], drawn[:, 1]))
            slots = mine.repeat_interleave(page_size)[:length], torch.arange(length) % page_size
            self.keys[slots], self.values[slots] = drawn[:, 0], drawn[:, 1]
        pools = pools.to(DEVICE)
        self.keys, self.values, self.tables = pools[0, 1], pools[1, 1], self.tables.to(DEVICE)
        self.known = torch.tensor(self.lengths, dtype=torch.int32, device=DEVICE)

    def truth(self, query: Tensor, request: int, position: int, window: int) -> Tensor:
        """What one row [heads, dim] sees from its position, in float64, by the definition."""
        heads, dim = query.shape
        key, value = (
            each[max(0, position + 1 - window) if window else 0 : position + 1].double()
            for each in self._known[request]
        )
        query = query.cpu()
        rows = []
        for head in range(heads):
            shared = head * key.shape[1] // heads
            weights = (key[:, shared] @ query[head].double() * dim**-0.5).softmax(0)
            rows.append(weights @ value[:, shared])
        return torch.stack(rows)


def queries(rows: int, heads: int, dim: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Drawn like keys; the rows lie apart, as they do in what a projection to queries, keys and values gives."""
    draw = torch.Generator().manual_seed(seed + 1000)
    return torch.randn((rows, heads + 2, dim), generator=draw).to(DEVICE, dtype)[:, :heads]


class Output:
    """``tensor`` [rows, heads, dim], all not-a-number, between guards that nobody may touch."""

    def __init__(self, rows: int, heads: int, dim: int, dtype: torch.dtype) -> None:
        self._memory = torch.full((rows + 2, heads + 1, dim + 8), 77.0, dtype=dtype, device=DEVICE)
        self.tensor = self._memory[1:-1, :heads, :dim].fill_(torch.nan)

    def check(self) -> Tensor:
        """Everything was written, and nothing beyond."""
        found = self.tensor.cpu().clone()
        assert not found.isnan().any(), "something was not written, or what may not be seen was"
        self.tensor.fill_(77.0)
        assert (self._memory == 77.0).all(), "something was written beyond the output"
        return found


def assert_close(found: Tensor, truth: Tensor, dtype: torch.dtype) -> None:
    """Weights and results are rounded once to ``dtype`` each; values are of size 1, seldom above 4."""
    error = (found.double() - truth.double()).abs()
    allowed = TOLERANCE[dtype] * (truth.double().abs() + 4)
    assert (error <= allowed).all(), f"off by {(error - allowed).max():g} more than {dtype} explains"
