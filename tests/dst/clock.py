"""The engine's clock, which is not the loop's: it leaps, stands, falls back, and runs while a listener is busy."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core.clock import VirtualClock
from stepwell.tests.dst.scenario import Jump, Stall


class CrookedClock:
    """A ``core.clock.Clock`` that is off from the loop's time by what ``troubles`` say."""

    def __init__(self, troubles: Sequence[Jump | Stall]) -> None:
        self.loop = VirtualClock()
        self._troubles = sorted(troubles, key=lambda each: each.at_ns)
        self._spent_ns = 0

    def now_ns(self) -> int:
        at_ns = self.loop.now_ns()
        off_ns = self._spent_ns
        for each in self._troubles:
            if each.at_ns > at_ns:
                break
            off_ns += each.by_ns if isinstance(each, Jump) else -min(each.for_ns, at_ns - each.at_ns)
        return max(at_ns + off_ns, 0)

    def spend(self, ns: int) -> None:
        """Somebody keeps the loop busy for so long."""
        self._spent_ns += ns

    async def sleep_until(self, at_ns: int) -> None:
        while True:
            now_ns, loop_ns = self.now_ns(), self.loop.now_ns()
            wake_ns = loop_ns + max(at_ns - now_ns, 0)
            turns = [each.at_ns for each in self._troubles]
            turns += [each.at_ns + each.for_ns for each in self._troubles if isinstance(each, Stall)]
            await self.loop.sleep_until(min([wake_ns, *(each for each in turns if each > loop_ns)]))
            if self.now_ns() >= at_ns:
                return

    async def settle(self) -> None:
        await self.loop.settle()
