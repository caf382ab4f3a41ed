"""A progress bar on stderr for whatever takes longer than a second, if a person is watching."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_S = 1.0


class Bar:
    """Call it with how much is done of ``total`` (0: unknown); it shows itself once ``PATIENCE_S`` have passed."""

    def __init__(self, what: str, total: int = 0) -> None:
        self._what = what
        self._total = total
        self._since_s = time.monotonic()
        self._watched = sys.stderr.isatty()
        self._shown: tuple[Progress, TaskID] | None = None

    def __call__(self, done: int) -> None:
        if not self._watched:
            return
        if self._shown is None:
            if time.monotonic() - self._since_s < PATIENCE_S:
                return
            self._shown = self._start()
        bar, task = self._shown
        bar.update(task, completed=done)

    def _start(self) -> tuple[Progress, TaskID]:
        from rich.console import Console  # lazy: only when something takes long
        from rich.progress import Progress  # lazy: only when something takes long

        bar = Progress(console=Console(stderr=True), transient=True)
        bar.start()
        return bar, bar.add_task(self._what, total=self._total or None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown[0].stop()


class Bars:
    """One bar after another, for work in parts: call it with the part, how much of it is done, and the whole of it."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._what = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._bar is None or what != self._what:
            self._close()
            self._bar, self._what = Bar(what, total), what
        self._bar(done)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
