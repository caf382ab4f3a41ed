"""The most tokens that those who run will hold at once, if guesses of their lengths are right.

Requests end in the order of what is left of them; just before the i-th last one ends, the i longest hold what they have
now and i times what is left of it.  The largest of these sums is the peak.  Members of the decode group gain a token
and lose one that is left in every step, so neither their order nor the sums change: they are kept, told by a clock that
counts the group's steps, and a step costs what changes in it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from stepwell.core.protocols import PolicyEvent, RequestView, SchedulerView
from stepwell.core.types import RequestId
from stepwell.policies.work import Guesses

Entry = tuple[int, int, RequestId]
"""(minus the clock at its end, tokens held at the clock's zero, request)."""


class Peak:
    """See the module.  ``observe`` every event, ``begin`` every plan."""

    def __init__(self, guesses: Guesses) -> None:
        self._guesses = guesses
        self._order: list[Entry] = []
        self._members: dict[RequestId, Entry] = {}
        self._others: dict[RequestId, RequestView] = {}
        self._beside: list[Entry] = []
        """Of whoever runs outside the group, and of those taken in by the plan."""
        self._whole = 0
        """What the members hold at their ends, all together."""
        self._clock = 0
        self._counted = False

    def observe(self, event: PolicyEvent) -> None:
        """Take notice of an event."""
        kind, id = event.kind, event.request.id
        if kind == "admitted" or kind == "resumed":
            self._others[id] = event.request
        elif kind != "arrived" and kind != "refused":
            self._others.pop(id, None)
            self._leave(id)

    def begin(self, view: SchedulerView) -> None:
        """A plan is made.  Whoever was held outside the group has lost its place among those who advance together."""
        self._counted = False
        for id, request in view.loose.items():
            if id in self._members:
                self._leave(id)
                self._others[id] = request

    def with_one_more(self, view: SchedulerView, request: RequestView, room: int) -> int:
        """The peak if ``request`` ran as well, or what it cannot pass if that is within ``room``.

        The request is counted from then on, until ``without`` or the next plan.
        """
        if not self._counted:
            self._count(view)
        self._beside.append(self._entry(view, request))
        soonest, order = self._clock + 1, self._order
        most = self._whole + sum([held - less for less, held, _ in self._beside])
        if order:
            most += len(order) * max(0, soonest + order[-1][0])
        if most <= room:
            return most
        return peak(sorted([*order, *self._beside]), soonest)

    def without(self) -> None:
        """The request that was counted last is not taken in."""
        self._beside.pop()

    def _count(self, view: SchedulerView) -> None:
        """Everybody who runs now."""
        decoding = view.decoding
        if self._order:
            _, held, id = self._order[0]
            first = decoding.get(id)
            if first is None:
                self._purge(view)
            else:
                self._clock = first.known + view.page_size - 1 - held
        for id, request in list(self._others.items()):
            if id in decoding:
                del self._others[id]
                self._members[id] = entry = self._entry(view, request)
                self._whole += entry[1] - entry[0]
                insort(self._order, entry)
        if len(self._order) != len(decoding):
            self._purge(view)
        self._beside = [self._entry(view, request) for id, request in self._others.items() if id in view.loose]
        self._counted = True

    def _purge(self, view: SchedulerView) -> None:
        """Some have left the group and nobody said so, as their last tokens are in flight."""
        for id in [id for id in self._members if id not in view.decoding]:
            self._leave(id)
        if self._order:
            _, held, id = self._order[0]
            self._clock = view.decoding[id].known + view.page_size - 1 - held

    def _entry(self, view: SchedulerView, request: RequestView) -> Entry:
        """A table's last page is partly empty, which counts as held."""
        clock = self._clock
        return (-self._guesses.left(request) - clock, request.known + view.page_size - 1 - clock, request.id)

    def _leave(self, id: RequestId) -> None:
        entry = self._members.pop(id, None)
        if entry is not None:
            self._whole -= entry[1] - entry[0]
            del self._order[bisect_left(self._order, entry)]


def peak(batch: Sequence[tuple[int, ...]], soonest: int = 1) -> int:
    """Most tokens held at once, of (minus when it ends, tokens held at time 0, …) in order.

    Whoever should have ended is taken to end at ``soonest``.
    """
    most = held = 0
    for count, entry in enumerate(batch, 1):
        held += entry[1]
        ends = -entry[0]
        whole = held + count * (ends if ends > soonest else soonest)
        if whole > most:
            most = whole
    return most
