"""A run as text: a strip a request, a column a stretch of time.  An observer for either shell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from stepwell.core.events import Event, RunDone, StepDone, StepFailed, Submitted
from stepwell.core.instructions import Admitted, Finished, Instruction, Launch, Preempted, Rejected, Resumed
from stepwell.core.types import RequestId, StepId

WAITS, COMPUTES, ANSWERS, KEPT, LOST, GONE = "·", "░", "█", "s", "r", " "

LEGEND = f"{WAITS} waits   {COMPUTES} its prompt is computed   {ANSWERS} answers   " + (
    f"{KEPT} sent away, kept in the host tier   {LOST} sent away, to be computed again"
)


class Strips:
    """What each request does at each time: ``changes`` are (time in ns, letter), in order."""

    def __init__(self) -> None:
        self.changes: dict[RequestId, list[tuple[int, str]]] = {}
        self._samples: dict[StepId, list[RequestId]] = {}
        self._answering: dict[RequestId, None] = {}

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Take in one turn."""
        for event in events:
            if isinstance(event, Submitted):
                self.changes[event.request] = [(now_ns, WAITS)]
            elif isinstance(event, StepDone | RunDone):
                for id in self._samples.pop(event.step, ()):
                    self._answering[id] = None
                    self._put(id, now_ns, ANSWERS)
            elif isinstance(event, StepFailed):
                self._samples.clear()
        for item in instructions:
            if isinstance(item, Admitted):
                self._put(item.request, now_ns, COMPUTES)
            elif isinstance(item, Resumed):
                self._put(item.request, now_ns, ANSWERS if item.request in self._answering else COMPUTES)
            elif isinstance(item, Preempted):
                self._put(item.request, now_ns, KEPT if item.mode == "swap" else LOST)
            elif isinstance(item, Finished | Rejected):
                self._put(item.request, now_ns, GONE)
            elif isinstance(item, Launch):
                self._samples[item.step] = [id for id, _, _, samples in item.slices if samples]

    def _put(self, id: RequestId, now_ns: int, letter: str) -> None:
        changes = self.changes[id]
        if changes[-1][1] != GONE:  # a step that ends after its request
            changes.append((now_ns, letter))

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
