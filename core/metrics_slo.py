"""Service level objectives: how many requests met those of their class, by the rules of the simulator's summary.

Who was refused, expired or failed missed.  Whom its client cancelled missed if it had by then; otherwise nobody knows,
and it is not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.metrics_core import Metric

from stepwell.core.limits import ClassLimits
from stepwell.core.metrics_families import Families

SLOS = ("ttft", "tpot", "all")
_COMPLETED = ("stop", "length")


class SloCounts:
    """Of the classes that have objectives."""

    def __init__(self, classes: Sequence[ClassLimits]) -> None:
        self._limits = {each.name: (each.ttft_ns, each.tpot_ns) for each in classes if each.ttft_ns or each.tpot_ns}
        asked = [
            (slo, klass)
            for klass, (ttft_ns, tpot_ns) in self._limits.items()
            for slo, there in zip(SLOS, (ttft_ns, tpot_ns, True), strict=True)
            if there
        ]
        self.attained = dict.fromkeys(asked, 0)
        self.judged = dict.fromkeys(asked, 0)

    def refused(self, klass: str) -> None:
        """It was not let in."""
        self.ended(klass, "rejected", -1, 0, 0, 0)

    def ended(self, klass: str, reason: str, first_ns: int, waited_ns: int, spoke_ns: int, tokens: int) -> None:
        """``waited_ns`` until the first token, or the end without one (``first_ns`` below 0); ``spoke_ns`` from there
        to the last of ``tokens``."""
        if klass not in self._limits:
            return
        ttft_ns, tpot_ns = self._limits[klass]
        late = bool(ttft_ns) and waited_ns > ttft_ns
        slow = bool(tpot_ns) and tokens > 1 and spoke_ns > tpot_ns * (tokens - 1)
        rest = True if reason in _COMPLETED else None if reason == "cancelled" else False
        begun = True if first_ns >= 0 else rest
        verdicts = (False if late else begun, False if slow else rest, False if late or slow else rest)
        for slo, met in zip(SLOS, verdicts, strict=True):
            if met is not None and (slo, klass) in self.judged:
                self.judged[slo, klass] += 1
                self.attained[slo, klass] += met

    def collect(self, make: Families) -> Iterable[Metric]:
        labels = ["slo", "class"]
        yield make.counters("stepwell:slo_attained", "Requests that met it.", labels, self.attained)
        yield make.counters("stepwell:slo_judged", "Requests that met or missed it.", labels, self.judged)
