"""A launch while it is made.

A plain class in a compiled module: its fields are written without a look-up by name, and what stays empty costs no
list.
"""

from __future__ import annotations

from typing import Any, Final

from stepwell.core import kinds
from stepwell.core.instructions import CopyRow, Launch, PageCopy, SliceRow, TableRow
from stepwell.core.types import RequestId, StepId

_NONE: Final[list[Any]] = []
"""One list for all launches that have nothing of a kind: nobody writes to a launch."""


class Draft:
    """The fields of ``Launch``.  ``slices`` and ``tables`` are appended to, the others replaced."""

    __slots__ = ("copies", "decode", "growth", "slices", "swap_in", "swap_out", "tables")

    def __init__(self) -> None:
        self.decode = False
        self.growth: list[int] = _NONE
        self.slices: list[SliceRow] = []
        self.tables: list[TableRow] = []
        self.swap_out: list[CopyRow] = _NONE
        self.swap_in: list[CopyRow] = _NONE
        self.copies: list[PageCopy] = _NONE

    def works(self) -> bool:
        """Whether there is anything to execute."""
        return bool(self.decode or self.slices or self.swap_out or self.swap_in)

    def launch(self, step: StepId, joined: list[RequestId], left: list[RequestId]) -> Launch:
        return kinds.LAUNCH(
            step, self.decode, self.growth, joined, left, self.slices, self.tables, self.swap_out, self.swap_in,
            self.copies,
        )  # fmt: skip


def decoding(step: StepId, growth: list[int], joined: list[RequestId] = _NONE, left: list[RequestId] = _NONE) -> Launch:
    """The launch of a step that does nothing but decode."""
    return kinds.LAUNCH(step, True, growth, joined, left, _NONE, _NONE, _NONE, _NONE, _NONE)
