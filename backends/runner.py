"""One forward pass for a step: who sits in which row, where its keys and values lie, and who attends to what.

Two runners with one face.  ``FastRunner`` takes all rows together.  ``TiledRunner`` puts them into tiles of a fixed
height, so that a request's numbers are the same, bit for bit, alone and in company.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor

from stepwell.backends.batch import Ints, Row
from stepwell.backends.kernels.attention import fixed, reference
from stepwell.backends.kv_cache import KVCache
from stepwell.backends.models.llama import Llama

TILE = 16
"""Rows of a tile."""
_TOGETHER = 8
"""Members of the group that attend in one operation."""


Told = Callable[[int, Tensor], None]
"""Is given scores and the position of the first of them; each row is about the token after its position."""


class SliceWork(msgspec.Struct, frozen=True):
    """Consecutive positions of one request.  ``told``: whoever wants the scores of the prompt's own tokens."""

    row: Row
    start: int
    count: int
    samples: bool
    told: Told | None = None


class StepWork(msgspec.Struct, frozen=True):
    """Rows of a step: the decode group as columns (``tables`` padded), and the slices."""

    tokens: Ints
    positions: Ints
    tables: Ints
    slices: Sequence[SliceWork]


class Runner(Protocol):
    """Computes a step; returns the scores of the group's rows, then of the slices that sample, in order."""

    def run(self, work: StepWork) -> Tensor: ...


class FastRunner:
    """All rows at once; attention in one operation for each slice and for every few members of the group."""

    def __init__(self, model: Llama, cache: KVCache) -> None:
        self._model, self._cache = model, cache

    def run(self, work: StepWork) -> Tensor:
        device, dtype, size = self._model.device, self._model.dtype, self._cache.page_size
        members = len(work.tokens)
        tokens, positions, slots = [work.tokens], [work.positions], [_slots(work.tables, work.positions, size)]
        pieces: list[tuple[int, int, Tensor, Tensor | None]] = []
        wanted = list(range(members))
        at = members
        for each in work.slices:
            end = each.start + each.count
            where = np.arange(each.start, end)
            pages = np.array(each.row.table[: -(-end // size)], np.int64)
            tokens.append(np.array(each.row.tokens[each.start : end], np.int64))
            positions.append(where)
            slots.append(pages[where // size] * size + where % size)
            width = len(pages) * size
            mask = reference.slice_mask(each.start, each.count, width, dtype, device) if each.start else None
            pieces.append((at, at + each.count, torch.from_numpy(pages).to(device), mask))
            at += each.count
            if each.samples:
                wanted.append(at - 1)
        slot = torch.from_numpy(np.concatenate(slots)).to(device)
        together = self._together(work)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self._cache.layer(layer)
            reference.write(keys, slot, key)
            reference.write(values, slot, value)
            out = []
            if members:
                out.append(torch.empty_like(query[:members]))
            for rows, tables, rule in together:
                out[0].index_copy_(0, rows, reference.decode(query.index_select(0, rows), keys, values, tables, rule))
            out += [
                reference.prefill(query[first:last], keys, values, pages, rule) for first, last, pages, rule in pieces
            ]
            return out[0] if len(out) == 1 else torch.cat(out)

        states = self._model.forward(_tensor(tokens, device), _tensor(positions, device), attend)
        for each, (first, _, _, _) in zip(work.slices, pieces, strict=True):
            _tell(self._model, states, first, each)
        if len(wanted) < states.shape[0]:
            states = states[torch.tensor(wanted, dtype=torch.int64, device=device)]
        return self._model.logits(states)

    def _together(self, work: StepWork) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Members that attend together, with their tables and mask: of like length, since all are padded to the
        longest, and so few that what is gathered for them stays in the processor's cache."""
        device, size = self._model.device, self._cache.page_size
        order = np.argsort(work.positions, kind="stable")
        made = []
        for first in range(0, len(order), _TOGETHER):
            rows = order[first : first + _TOGETHER]
            pages = int(work.positions[rows[-1]]) // size + 1
            lengths = torch.from_numpy(work.positions[rows] + 1).to(device)
            mask = reference.decode_mask(lengths, pages * size, self._model.dtype)
            made.append(
                (torch.from_numpy(rows).to(device), torch.from_numpy(work.tables[rows, :pages]).to(device), mask)
            )
        return made


class TiledRunner:
    """Tiles of ``TILE`` rows: of one slice each, or of members of the group; what is missing is padding."""

    def __init__(self, model: Llama, cache: KVCache) -> None:
        assert model.tile == TILE
        self._model, self._cache = model, cache
        self._nowhere = cache.pages * cache.page_size

    def run(self, work: StepWork) -> Tensor:
        size, device = self._cache.page_size, self._model.device
        tokens: list[Ints] = []
        positions: list[Ints] = []
        slots: list[Ints] = []
        tiles: list[list[fixed.Chunk]] = []
        wanted = list(range(len(work.tokens)))
        firsts: list[int] = []
        at = 0
        for first in range(0, len(work.tokens), TILE):
            here = slice(first, first + TILE)
            context = self._context(work.tables[here], int(work.positions[here].max()) + 1)
            tiles.append(self._tile(context, work.positions[here]))
            tokens.append(_padded(work.tokens[here], 0))
            positions.append(_padded(work.positions[here], 0))
            slots.append(_padded(_slots(work.tables[here], work.positions[here], size), self._nowhere))
            at += TILE
        for each in work.slices:
            firsts.append(at)
            table = np.array([each.row.table], np.int64)
            for start in range(each.start, each.start + each.count, TILE):
                where = np.arange(start, min(start + TILE, each.start + each.count))
                tiles.append(self._tile(self._context(table, int(where[-1]) + 1), where))
                tokens.append(_padded(np.array([each.row.tokens[place] for place in where], np.int64), 0))
                positions.append(_padded(where, 0))
                slots.append(_padded(table[0][where // size] * size + where % size, self._nowhere))
                at += TILE
            if each.samples:
                wanted.append(at - TILE + (each.count - 1) % TILE)
        slot = _tensor(slots, device)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self._cache.layer(layer)
            reference.write(keys, slot, key)
            reference.write(values, slot, value)
            keys, values = keys.flatten(0, 1), values.flatten(0, 1)
            parts = zip(query.chunk(len(tiles)), tiles, strict=True)
            return torch.cat([fixed.tile(part, keys, values, chunks) for part, chunks in parts])

        states = self._model.forward(_tensor(tokens, device), _tensor(positions, device), attend)
        for each, first in zip(work.slices, firsts, strict=True):
            _tell(self._model, states, first, each)
        padded = wanted + [0] * (-len(wanted) % TILE)
        if not padded:
            return torch.zeros((0, self._model.config.vocab_size), device=device)
        return self._model.logits(states[torch.tensor(padded, dtype=torch.int64, device=device)])[: len(wanted)]

    def _context(self, tables: Ints, length: int) -> Ints:
        """Slots of the first ``length`` positions of each table, padded to whole chunks."""
        size = self._cache.page_size
        where = np.arange(length)
        found = tables[:, where // size] * size + where % size
        return np.pad(found, ((0, 0), (0, -length % fixed.CHUNK)), constant_values=self._nowhere)

    def _tile(self, context: Ints, positions: Ints) -> list[fixed.Chunk]:
        device = self._model.device
        if len(context) > 1:
            context = np.pad(context, ((0, TILE - len(context)), (0, 0)), constant_values=self._nowhere)
        return fixed.chunks(torch.from_numpy(context).to(device), torch.from_numpy(_padded(positions, 0)).to(device))


def _tell(model: Llama, states: Tensor, at: int, each: SliceWork) -> None:
    """The scores of a slice whose rows begin ``at``; a tile at a time, as a whole prompt's would fill the memory."""
    if each.told is None:
        return
    count = min(each.count, each.row.prompt_tokens - 1 - each.start)  # the last one is about the answer
    for first in range(0, count, TILE):
        here = torch.arange(at + first, at + min(first + TILE, count), device=states.device)
        padded = torch.cat([here, here[:1].expand(TILE - len(here))])
        each.told(each.start + first, model.logits(states[padded])[: len(here)])


def _slots(tables: Ints, positions: Ints, size: int) -> Ints:
    """Where each member's new key goes."""
    pages: Ints = np.take_along_axis(tables, positions[:, None] // size, axis=1)[:, 0]
    return pages * size + positions % size


def _padded(values: Ints, filler: int) -> Ints:
    return np.pad(values, (0, TILE - len(values)), constant_values=filler)


def _tensor(parts: Sequence[Ints], device: torch.device) -> Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(device)
