"""News of answers, brought to their connections by a call and not by waking a task.

A token that goes the server's whole way costs a switch to the connection's task, and a coroutine or two for each layer
that it passes; that is more than the token itself.  So a connection whose task waits for news is told of them by a
call: if its transport takes what there is to say at once, it is written, and the task sleeps on.  Beginnings, ends,
slow clients and everything odd are the task's.
"""

from __future__ import annotations

from collections.abc import Callable

from stepwell.transports.bell import Bell
from stepwell.transports.outlet import Outlet


class Herald:
    """A bell that brings the news of an answer: by a call while its task waits in ``heard``, or else by waking it.

    ``say`` says what there is and returns True, or returns False if that is for the task; an exception is the task's.
    """

    __slots__ = ("_bell", "_due", "_error", "_outlet", "_say", "_waits")

    def __init__(self, outlet: Outlet, say: Callable[[], bool]) -> None:
        self._outlet = outlet
        self._say = say
        self._bell = Bell()
        self._due = self._waits = False
        self._error: Exception | None = None

    def ring(self) -> None:
        """There is something new."""
        if self._due:
            return
        if self._waits:
            self._due = True
            self._outlet.soon(self._bring)
        else:
            self._bell.ring()

    def _bring(self) -> None:
        self._due = False
        try:
            said = self._waits and self._say()
        except Exception as error:
            self._error, said = error, False
        if not said:
            self._bell.ring()

    async def heard(self) -> None:
        """Wait until there is something for the task to do.  Raises what ``say`` raised."""
        self._waits = True
        try:
            await self._bell.heard()
        finally:
            self._waits = False
        if self._error is not None:
            raise self._error
