"""Slices of requests as columns: what a step with a prefill reads besides the decode group."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from torch import Tensor

from stepwell.backends.batch import Ints
from stepwell.backends.device.group import Words
from stepwell.backends.device.transfer import Post
from stepwell.backends.kernels.sampling.columns import WORDS
from stepwell.backends.runner import SliceWork
from stepwell.core.types import Page


class Slices(msgspec.Struct, frozen=True):
    """Consecutive positions of one request after another, on the device.  Index tensors as the kernels take them."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    """[rows], of all slices."""
    tables: Tensor
    """[slices, pages of the longest], padded with ``nowhere``."""
    firsts: Tensor
    """[slices + 1]: the row at which each begins."""
    starts: Tensor
    """[slices]: the position at which each begins."""
    longest: int
    """Rows of the longest."""
    last: Tensor
    """The last row (int64) of each slice that samples."""
    lengths: Tensor
    """Positions that each of those knows then."""
    sampling: Tensor
    """[words, slices that sample]."""


def send_slices(work: Sequence[SliceWork], words: Words, nowhere: Page, page_size: int, post: Post) -> Slices:
    """In one copy.  Raises ``IndexError`` for a position that has no page or no token."""
    tokens: list[Ints] = []
    positions: list[Ints] = []
    slots: list[Ints] = []
    tables: list[Ints] = []
    for each in work:
        end = each.start + each.count
        where = np.arange(each.start, end)
        pages = np.array(each.row.table[: -(-end // page_size)], np.int64)
        slots.append(pages[where // page_size] * page_size + where % page_size)
        tokens.append(_taken(each.row.tokens, where))
        positions.append(where)
        tables.append(pages)
    width = max(map(len, tables))
    padded = np.full((len(work), width), nowhere, np.int64)
    for place, pages in enumerate(tables):
        padded[place, : len(pages)] = pages
    firsts = np.cumsum([0, *(each.count for each in work)])
    sampling = [each for each in work if each.samples]
    last = firsts[1:][[each.samples for each in work]] - 1
    columns = np.array([words(each.row) for each in sampling], np.int64).reshape(len(sampling), WORDS).T
    sent = post.send(
        [
            *(np.concatenate(each) for each in (tokens, positions, slots)),
            padded.ravel(),
            firsts,
            np.array([each.start for each in work], np.int64),
            last,
            np.array([each.start + each.count for each in sampling], np.int64),
            columns.ravel(),
        ]
    )
    return Slices(
        tokens=sent[0].int(),
        positions=sent[1].int(),
        slots=sent[2],
        tables=sent[3].int().view(len(work), width),
        firsts=sent[4].int(),
        starts=sent[5].int(),
        longest=max(each.count for each in work),
        last=sent[6],
        lengths=sent[7].int(),
        sampling=sent[8].int().view(WORDS, len(sampling)),
    )


def _taken(tokens: Sequence[int], where: Ints) -> Ints:
    found = np.array(tokens[int(where[0]) : int(where[-1]) + 1], np.int64)
    if len(found) < len(where):
        raise IndexError(f"position {where[-1]} has no token")
    return found
