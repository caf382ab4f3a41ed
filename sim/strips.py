"""A run as text: a strip a request, a column a stretch of time.  An observer for either shell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from stepwell.core.types import RequestId
from stepwell.sim.phases import DECODE, PREEMPTED, PREFILL, QUEUED, SWAPPED_OUT, Phases
from stepwell.sim.phases import GONE as ENDED

WAITS, COMPUTES, ANSWERS, KEPT, LOST, GONE = "·", "░", "█", "s", "r", " "

LEGEND = f"{WAITS} waits   {COMPUTES} its prompt is computed   {ANSWERS} answers   " + (
    f"{KEPT} sent away, kept in the host tier   {LOST} sent away, to be computed again"
)


_LETTERS = {QUEUED: WAITS, PREFILL: COMPUTES, DECODE: ANSWERS, SWAPPED_OUT: KEPT, PREEMPTED: LOST, ENDED: GONE}


class Strips:
    """What each request does at each time: ``changes`` are (time in ns, letter), in order."""

    def __init__(self) -> None:
        self.changes: dict[RequestId, list[tuple[int, str]]] = {}
        self.observe = Phases(self._put).observe

    def _put(self, now_ns: int, id: RequestId, phase: str) -> None:
        self.changes.setdefault(id, []).append((now_ns, _LETTERS[phase]))

    def lines(self, labels: Mapping[RequestId, str], column_ns: int) -> Iterator[str]:
        """One a request that has a label; a column shows what it did for the longest time in it, if anything."""
        last_ns = max(changes[-1][0] for changes in self.changes.values())
        columns = range(-(-last_ns // column_ns))
        width = max(map(len, labels.values()))
        for id, label in labels.items():
            strip = "".join([self._letter(id, at * column_ns, (at + 1) * column_ns) for at in columns])
            yield f"{label:<{width}} |{strip}".rstrip()

    def _letter(self, id: RequestId, from_ns: int, to_ns: int) -> str:
        spent: dict[str, int] = {}
        changes = [(0, GONE), *self.changes[id], (to_ns, GONE)]
        for (start_ns, letter), (end_ns, _) in pairwise(changes):
            for_ns = min(end_ns, to_ns) - max(start_ns, from_ns)
            if for_ns > 0 and letter != GONE:
                spent[letter] = spent.get(letter, 0) + for_ns
        return max(spent, key=lambda letter: spent[letter], default=GONE)
