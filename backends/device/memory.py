"""Where a device's memory goes: measured at the start, so that nothing runs out of it later.

Weights are counted, the largest step is rehearsed and its peak measured, and a reserve is left for what nobody can
measure beforehand.  What remains is for pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import torch

from stepwell.backends.budget import available_bytes, mib
from stepwell.backends.device.faults import out_of_memory
from stepwell.backends.device.swap import staging_pages
from stepwell.core.errors import UserError

RESERVE = 256 << 20
"""Bytes that are left alone on an accelerator: for kernels that are loaded when they are first needed, for the
libraries' own workspaces, and for what is free in pieces of the wrong size."""
FEWER = 0.97
"""What is tried next, of the pages that fit by the count and not in fact."""
TRIES = 4

T = TypeVar("T")


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """A device's memory and what is taken of it before any page, in bytes; ``page`` is what one takes."""

    limit: int
    weights: int
    activation: int
    graphs: int = 0
    """Of recorded graphs of steps, their own inputs and outputs included."""
    staging: int = 0
    """Where pages are gathered on their way to the host and back."""
    reserve: int = 0
    page: int

    @property
    def pages(self) -> int:
        """How many fit."""
        taken = self.weights + self.activation + self.graphs + self.staging + self.reserve
        return max(0, (self.limit - taken) // self.page)

    def told(self) -> str:
        """For people."""
        parts = {
            "of weights": self.weights,
            "for the largest step": self.activation,
            "for graphs": self.graphs,
            "to copy through": self.staging,
            "in reserve": self.reserve,
        }
        return ", ".join(f"{mib(count)} {what}" for what, count in parts.items() if count)


def room_on(
    device: torch.device, limit: int, *, weights: int, activation: int, page: int, host_pages: int, graphs: int = 0
) -> Room:
    """What there is on ``device`` if its memory is ``limit``, measured before the weights were there."""
    apart = device.type != "cpu"
    return Room(
        limit=limit,
        weights=weights,
        activation=activation,
        graphs=graphs,
        staging=staging_pages(host_pages, page) * page if apart else 0,
        reserve=RESERVE if apart else 0,
        page=page,
    )


def pages_for(room: Room, wanted: int, host_pages: int, token_budget: int, device: torch.device) -> int:
    """How many pages to take: ``wanted``, or as many as fit if that is 0.

    On the processor host pages are in the same memory; beside an accelerator they need the machine's.  Raises
    ``UserError`` if there is no room for them.
    """
    shared = host_pages if device.type == "cpu" else 0
    # The processor's memory is also everybody else's: a pool that sizes itself takes half of it.
    pages = wanted or (room.pages // 2 if device.type == "cpu" else room.pages) - shared
    if pages < 1 or pages + shared > room.pages:
        raise UserError(
            f"{mib(room.limit)} of memory do not hold {room.told()} (a step has {token_budget} tokens), and"
            f" {max(pages, 1) + shared} pages of {mib(room.page * 1024)} per 1,024; {room.pages} pages would fit"
            f"{' (host pages count too)' if shared else ''}, or a smaller scheduler.token_budget",
            field="memory.pages",
        )
    if not shared and host_pages * room.page > (free := available_bytes(torch.device("cpu"))):
        raise UserError(
            f"{mib(free)} of the machine's memory do not hold {host_pages} pages of {mib(room.page * 1024)} per 1,024",
            field="memory.host_pages",
        )
    return pages


def take(make: Callable[[int], T], pages: int, *, fewer: bool) -> T:
    """``make`` a pool of so many pages; if the device has no room for it after all, of a few less, or not at all.

    Raises ``UserError`` if ``fewer`` is not wanted or does not help.
    """
    for left in range(TRIES if fewer else 1)[::-1]:
        try:
            return make(pages)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if not left:
                raise UserError(
                    f"there is no room for {pages} pages, although there should be: {str(error).splitlines()[0]}",
                    field="memory.pages",
                ) from None
        pages = max(1, int(pages * FEWER))
    raise AssertionError("unreachable")


@contextmanager
def making_room_for(what: str, field: str) -> Iterator[None]:
    """Running out of memory inside is the setting's fault: raises ``UserError``."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise UserError(f"there is no room for {what}: {str(error).splitlines()[0]}", field=field) from None
