"""Turns as they happen, made into the lines of a journal (see ``core.journal`` for the records).

Pure: it makes bytes; ``core.journal_file`` keeps the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from stepwell.core.events import Event, RunDone, StepDone
from stepwell.core.instructions import Instruction, Launch, Run
from stepwell.core.journal import RUN_STEPS, Gap, Prompt, Repeated, Sampled
from stepwell.core.types import StepId

_encoder = msgspec.json.Encoder()


class JournalEncoder:
    """Collects records; ``take`` gives their bytes.  One encoder writes one journal, whatever its segments."""

    def __init__(self, launch_ns: int = 0) -> None:
        """``launch_ns``: when the latest step was launched, if there were any before."""
        self._records: list[object] = []
        self._launch_ns = launch_ns
        self._run = Repeated(0, 0, [], [], [])
        self._run_differs = False
        self.turns = 0
        """Turns recorded so far."""

    def turn(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Record one call of ``Scheduler.handle``; repeats are held back until their run is complete."""
        self.turns += 1
        if len(events) == 1 and len(instructions) == 1:
            event, instruction = events[0], instructions[0]
            if type(event) is StepDone:
                if (
                    type(instruction) is Launch
                    and instruction.step == event.step + 1  # not so at depth 2 and 3
                    and not (event.ended or event.copy_ns or event.keys)
                    and instruction.repeats()
                ):
                    self._repeat(event.step, now_ns, event.elapsed_ns, instruction.growth)
                    return
            elif type(event) is RunDone:
                assert type(instruction) is Run
                self._take_run(event, instruction)
                return
        if self._run.gaps_ns:
            self._end_run()
        self._records.append((now_ns, events, instructions))
        for instruction in instructions:
            if type(instruction) is Launch:
                self._launch_ns = now_ns

    def note(self, record: Prompt | Sampled | Gap) -> None:
        """Record something else, in order with the turns."""
        self._end_run()
        self._records.append(record)

    def take(self, *, flush: bool = False) -> bytes:
        """The lines recorded since the last call; ``flush`` ends a run that is being collected."""
        if flush:
            self._end_run()
        records, self._records = self._records, []
        return _encoder.encode_lines(records) if records else b""

    def _repeat(self, step: StepId, now_ns: int, elapsed_ns: int, growth: list[int]) -> None:
        run = self._run
        if not run.gaps_ns:
            run.step = step
            run.start_ns = self._launch_ns
        gap_ns = now_ns - self._launch_ns
        offset = len(run.gaps_ns)
        for index in range(0, len(growth), 2):
            run.growth += (offset, growth[index], growth[index + 1])
        run.gaps_ns.append(gap_ns)
        run.elapsed_ns.append(elapsed_ns)
        self._launch_ns = now_ns
        if gap_ns != elapsed_ns:
            self._run_differs = True
        if offset + 1 >= RUN_STEPS:
            self._end_run()

    def _take_run(self, event: RunDone, answer: Run) -> None:
        """Many repeats at once, cut into the same records as if they came one by one."""
        times, growth = event.done_ns, answer.growth
        taken = read = 0
        while taken < len(times):
            run = self._run
            have = len(run.gaps_ns)
            if not have:
                run.step = event.step + taken
                run.start_ns = self._launch_ns
            part = times[taken : taken + RUN_STEPS - have]
            gaps_ns = [later - sooner for sooner, later in pairwise((self._launch_ns, *part))]
            run.gaps_ns += gaps_ns
            run.elapsed_ns += gaps_ns
            self._launch_ns = part[-1]
            shift = have - taken
            taken += len(part)
            while read < len(growth) and growth[read] < taken:
                run.growth += (growth[read] + shift, growth[read + 1], growth[read + 2])
                read += 3
            if have + len(part) >= RUN_STEPS:
                self._end_run()

    def _end_run(self) -> None:
        run = self._run
        if run.gaps_ns:
            if not self._run_differs:
                run.elapsed_ns = []
            self._records.append(run)
            self._run = Repeated(0, 0, [], [], [])
            self._run_differs = False
