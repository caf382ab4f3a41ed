"""Tasks done by a runner, those left out whose outcomes were kept from before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepwell.sim.compare.cache import Cache
from stepwell.sim.compare.runners import Runner
from stepwell.sim.compare.tasks import Outcome, Task, decode_outcome, encode

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and of how much."""


class Work:
    """Carries out tasks, those that were kept from before without running them."""

    def __init__(self, runner: Runner, cache: Cache, progress: Progress | None) -> None:
        self._runner = runner
        self._cache = cache
        self._progress = progress or (lambda what, done, total: None)

    def do(self, what: str, tasks: Sequence[Task]) -> list[Outcome]:
        """Outcomes in the order of the tasks."""
        found = [self._cache.find(each) for each in tasks]
        missing = [index for index, each in enumerate(found) if each is None]
        done, total = len(tasks) - len(missing), len(tasks)
        self._progress(what, done, total)
        for place, data in self._runner([encode(tasks[index]) for index in missing]):
            index = missing[place]
            outcome = found[index] = decode_outcome(data)
            self._cache.keep(tasks[index], outcome)
            done += 1
            self._progress(what, done, total)
        return [each for each in found if each is not None]
