"""Counts what a call does instead of timing it: executed lines of the package, and comparisons of request ids."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from stepwell import core, memory, policies

ROOMS = tuple(path for room in (core, memory, policies) for path in room.__path__)


class CountingId(int):
    """A request id that counts how often it is compared: sorting or searching a queue in C does not go unseen."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        CountingId.compared += 1
        return int.__eq__(self, other)

    def __lt__(self, other: int) -> bool:
        CountingId.compared += 1
        return int.__lt__(self, other)


def effort(call: Callable[[], object]) -> int:
    """Lines of the package that ``call`` executes, comparisons of ids included."""
    lines = 0

    def within(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return within

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        return within if frame.f_code.co_filename.startswith(ROOMS) else None

    before = CountingId.compared
    traced = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(traced)
    return lines + CountingId.compared - before
