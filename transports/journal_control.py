"""The journal as an operator handles it while serving."""

from __future__ import annotations

from typing import Protocol


class JournalControl(Protocol):
    """Of a server that has a folder for journals."""

    def start(self) -> None:
        """Begin a new one with the present state; nothing if one is being written.  Raises ``UserError`` if it cannot
        be written."""
        ...

    def stop(self) -> None:
        """Write the rest and close; nothing if none is being written."""
        ...

    def rotate(self) -> None:
        """Begin a new segment.  Raises ``UserError`` if none is being written."""
        ...

    def state(self) -> dict[str, object]:
        """Whether it is ``on``, and where, at which level, how much, and what was lost."""
        ...
