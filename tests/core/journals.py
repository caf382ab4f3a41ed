"""Journals on disk for tests: recorded by a simulation, read back record by record."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from stepwell.core.events import Event
from stepwell.core.instructions import Instruction
from stepwell.core.journal import Prompt, Record, Repeated, Sampled, Turn
from stepwell.core.journal_file import JournalWriter, open_journal
from stepwell.core.scheduler import Scheduler
from stepwell.core.snapshot import capture
from stepwell.sim.cost.linear import Linear
from stepwell.sim.loop import Observer, Simulator
from stepwell.sim.replay import ReplayReport, replay
from stepwell.tests.core.shells import Case, header_of


def writer_for(
    case: Case, scheduler: Scheduler, path: Path, *, level: str = "decisions", **options: Any
) -> JournalWriter:
    header = header_of(case.config(), scheduler, level=level)
    return JournalWriter(path, header, lambda: msgspec.json.encode(capture(scheduler)), **options)


def record(case: Case, path: Path, *, beside: Sequence[Any] = (), jumps: bool = True, **options: Any) -> JournalWriter:
    """Simulate ``case``, journalled.  ``beside`` are further observers, called with the writer in front."""
    scheduler = case.build()
    writer = writer_for(case, scheduler, path, **options)

    def bound(extra: Any) -> Observer:
        def observe(now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
            extra(writer, now_ns, events, out)

        return observe

    Simulator(
        scheduler,
        Linear(case.cost),
        case.requests,
        observers=[writer.observe, *map(bound, beside)],
        max_tokens=case.max_tokens,
        faults=case.fault_script(),
        jumps=jumps,
    ).run()
    writer.close()
    return writer


class RotateEvery:
    """A further observer that begins a new segment after every ``turns`` turns."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.left = turns

    def __call__(self, writer: JournalWriter, now_ns: int, events: object, out: object) -> None:
        self.left -= 1
        if not self.left:
            self.left = self.turns
            writer.rotate()


def records(path: Path) -> list[Record]:
    return [each for segment in open_journal(path) for each in segment.records()]


def decisions(found: Sequence[Record]) -> list[tuple[int, int]]:
    """(time, steps launched) of every turn, repeats written out: what rotation must not change."""
    told: list[tuple[int, int]] = []
    for each in found:
        if isinstance(each, Turn):
            told.append((each.now_ns, len(each.instructions)))
        elif isinstance(each, Repeated):
            told += [(now_ns, 1) for now_ns in each.done_ns()]
    return told


def replays(path: Path) -> ReplayReport:
    report = replay(path)
    assert report.difference is None, str(report.difference)
    return report


def said(found: Sequence[Record]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Prompts and answers by request, from a journal of level ``tokens``."""
    prompts = {each.request: each.tokens for each in found if isinstance(each, Prompt)}
    answers: dict[int, list[int]] = {}
    for each in found:
        if isinstance(each, Sampled):
            for request, token in each.tokens:
                answers.setdefault(request, []).append(token)
    return prompts, answers


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file of this process may grow beyond ``size`` bytes: the kernel writes what fits and then refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
