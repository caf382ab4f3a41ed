"""The steps that are under way at a place, from their launch to the event that says what came of them.

Every launch is handed to the place at once, so with more than one in flight the next one waits where it is executed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import anyio

from stepwell.core.clock import Clock
from stepwell.core.execution import StepResult
from stepwell.core.instructions import Launch
from stepwell.core.placement import Ask, Place
from stepwell.core.types import StepId


class _Step(NamedTuple):
    """One that was begun at ``begun_ns``; ``ask`` waits for what comes of it.  Id 0: a loss between steps."""

    id: StepId
    begun_ns: int
    ask: Ask


class StepsUnderWay:
    """In order.  ``tell`` is given every result, once its time is over; the steps after a failed one are void."""

    def __init__(self, place: Place, clock: Clock, tell: Callable[[StepResult], None]) -> None:
        self._place = place
        self._clock = clock
        self._tell = tell
        self._way: deque[_Step] = deque()
        self._news = anyio.Event()

    def __len__(self) -> int:
        return len(self._way)

    def begin(self, launch: Launch) -> None:
        """Hand it to the place, which executes it after those before it."""
        self._add(launch.step, self._place.begin(launch))

    def lost(self, ask: Ask) -> None:
        """The place lost all that was on the device while no step was there that could have failed."""
        self._add(0, ask)

    def _add(self, id: StepId, ask: Ask) -> None:
        self._way.append(_Step(id, self._clock.now_ns(), ask))
        self._news.set()

    async def run(self) -> None:
        """Until cancelled.  A backend that only says how long a step takes is waited for.

        Raises what the place raises: it leaves nobody knowing what is on the device.
        """
        due_ns = 0
        while True:
            while not self._way:
                self._news = anyio.Event()
                await self._news.wait()
            step = self._way[0]
            result = await step.ask()
            due_ns = max(step.begun_ns, due_ns) + result.elapsed_ns
            await self._clock.sleep_until(due_ns)
            self._way.popleft()
            if result.failed:
                if not step.id and self._way:
                    result.step = self._way[0].id  # it was launched before anybody heard of the loss
                self._way.clear()
                self._place.drop()
            self._tell(result)
