"""What a crowd of streams heard: when, how much, and whether every token came once.

The fake device numbers the tokens of an answer (``sim.rehearsal.NUMBERED``), two letters each, so that the next letters
of every answer are known before they come.
"""

from __future__ import annotations

from array import array
from collections import Counter
from time import perf_counter_ns

from stepwell.core.types import NS_PER_S
from stepwell.sim.numbered import NUMBERED, number_of

_AHEAD = NUMBERED * 3
_LONGEST = 2 * len(NUMBERED)
_SHOWN = 5


class Tally:
    """Of one crowd.  Gaps and tokens count between ``begin`` and ``stop``, first tokens and faults always."""

    def __init__(self, late_gap_ns: int = 0, *, numbered: bool = True) -> None:
        """``late_gap_ns``: a longer gap between two pieces of one answer missed the beat; 0: there is none.

        ``numbered``: the text says which tokens it is; otherwise it is taken as it comes.
        """
        self.numbered = numbered
        self.late_gap_ns = late_gap_ns
        self.measuring = False
        self.began_ns = self.stopped_ns = 0
        self.ttfts_us = array("L")
        self.gaps_us = array("L")
        self.asked = self.answered = self.left = 0
        """Requests sent, those that ended as they should, and those whose client left."""
        self.tokens = self.pieces = 0
        self.open = self.most_open = 0
        """Answers in progress, seen from here."""
        self.lost = self.doubled = self.late_beats = 0
        self.refused: Counter[str] = Counter()
        self.without_retry = 0
        """Refusals that do not say when to come again."""
        self.retry_s: list[float] = []
        self.problems: Counter[str] = Counter()
        self.firsts: list[tuple[int, int]] = []
        """The server's number of a request, and when its first token came (ns)."""

    def begin(self) -> None:
        """From here on tokens and gaps count."""
        self.measuring, self.began_ns = True, perf_counter_ns()

    def stop(self) -> None:
        """And no further."""
        self.measuring, self.stopped_ns = False, perf_counter_ns()

    def forget(self) -> None:
        """Gaps and tokens so far."""
        del self.gaps_us[:]
        self.tokens = self.pieces = self.late_beats = 0

    @property
    def seconds(self) -> float:
        return (self.stopped_ns - self.began_ns) / NS_PER_S

    @property
    def wrong(self) -> list[str]:
        """What should not have happened, most frequent first."""
        told = [f"{count} × {what}" for what, count in self.problems.most_common(_SHOWN)]
        for count, what in ((self.lost, "lost tokens"), (self.doubled, "doubled tokens")):
            told += [f"{count} {what}"] if count else []
        if self.without_retry:
            told.append(f"{self.without_retry} refusals without Retry-After")
        return told

    def overtaken(self, by_ns: int) -> int:
        """How many requests got their first token so much later than one that came after them."""
        behind, soonest_ns = 0, 0
        for _, first_ns in sorted(self.firsts, reverse=True):
            behind += bool(soonest_ns) and first_ns > soonest_ns + by_ns
            soonest_ns = min(soonest_ns, first_ns) if soonest_ns else first_ns
        return behind


class Heard:
    """One answer, as it comes in; ``done`` is called once it ended, with the seconds after which to come again."""

    __slots__ = ("_due_ns", "_last_ns", "_letters", "_number", "_tally", "_wanted", "done")

    def __init__(self, tally: Tally, wanted: int, due_ns: int) -> None:
        """``wanted``: tokens that were asked for; 0: whoever asked will leave before they have come."""
        self.done = _nothing
        self._tally = tally
        self._wanted = wanted
        self._due_ns = due_ns
        self._last_ns = self._letters = self._number = 0
        tally.asked += 1
        tally.open += 1
        tally.most_open = max(tally.most_open, tally.open)

    def named(self, number: str) -> None:
        self._number = int(number) if number.isdigit() else 0

    def heard(self, text: str) -> None:
        now_ns, tally = perf_counter_ns(), self._tally
        size = len(text)
        place = self._letters % len(NUMBERED)
        if tally.numbered and (size > _LONGEST or _AHEAD[place : place + size] != text):
            self._resume(text)
        self._letters += size
        if not self._last_ns:
            tally.ttfts_us.append((now_ns - self._due_ns) // 1000)
            tally.firsts.append((self._number, now_ns))
        elif tally.measuring:
            gap_ns = now_ns - self._last_ns
            tally.gaps_us.append(gap_ns // 1000)
            tally.late_beats += bool(tally.late_gap_ns) and gap_ns > tally.late_gap_ns
        if tally.measuring:
            tally.tokens += size >> 1
            tally.pieces += 1
        self._last_ns = now_ns

    def _resume(self, text: str) -> None:
        """The piece is not the next one: say by how many tokens, and go on from where it is."""
        whole, period = self._letters >> 1, len(NUMBERED) >> 1
        try:
            jump = (number_of(text[:2]) - whole) % period
        except ValueError:
            self._tally.problems["text that nobody said"] += 1
            return
        if jump <= period >> 1:
            self._tally.lost += jump
        else:
            self._tally.doubled += period - jump
            jump -= period
        self._letters += 2 * jump
        place = self._letters % len(NUMBERED)
        repeats = len(text) // len(NUMBERED) + 2
        if (NUMBERED * repeats)[place : place + len(text)] != text:
            self._tally.problems["a piece of text with a fault in its middle"] += 1

    def over(self, reason: str) -> None:
        self._tally.answered += 1
        if reason != "length" and self._wanted:
            self._tally.problems[f"ended by {reason!r}"] += 1
        self._missing()
        self._end(0.0)

    def _missing(self) -> None:
        missing = self._wanted - (self._letters >> 1) if self._wanted else 0
        self._tally.lost += max(missing, 0)
        self._tally.doubled += max(-missing, 0)

    def refused(self, code: str, retry_after: str) -> None:
        tally = self._tally
        tally.refused[code or "no reason given"] += 1
        seconds = 0.0
        try:
            seconds = float(retry_after)
            tally.retry_s.append(seconds)
        except ValueError:
            tally.without_retry += 1
        if not code:
            tally.problems["a refusal without a reason"] += 1
        self._end(seconds)

    def broken(self, why: str) -> None:
        self._tally.problems[why] += 1
        self._missing()
        self._end(1.0)

    def leave(self) -> None:
        """The client went away by itself."""
        self._tally.left += 1
        self._tally.open -= 1

    def _end(self, retry_s: float) -> None:
        self._tally.open -= 1
        self.done(retry_s)


def _nothing(retry_s: float) -> None:
    """Nobody waits."""
