"""What a journal tells of the run that it records: who came, what became of them, how long steps took, who decided.

One run to compare others with.  **Compared** are requests that arrived in the record and ended in it.  Those that were
there when it begins are known in outline only; those that it does not see the end of have no latency; what came while
it could not be written (a gap) is not in it at all.  Notes say how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from stepwell.core.config import Config
from stepwell.core.errors import UserError
from stepwell.core.events import Event, Submitted, UsePolicy
from stepwell.core.instructions import Finished, Instruction, Launch, PolicyFault
from stepwell.core.types import NS_PER_S, RequestId
from stepwell.sim.journal_read import MISFIT, SIMULATED, Latecomers, Stretch, config_of, misfit, stretches, turns
from stepwell.sim.metrics import RequestRecord, RunMetrics
from stepwell.sim.step_reader import MeasuredStep, StepReader
from stepwell.sim.wording import many
from stepwell.sim.workload.journal import read_identified
from stepwell.sim.workload.request import Workload


class Reign(msgspec.Struct):
    """A policy's time: it decided from ``from_ns`` on, for so many steps.  ``faulted``: it broke a rule."""

    policy: str
    options: dict[str, object]
    from_ns: int
    steps: int = 0
    faulted: bool = False


class Recorded(msgspec.Struct):
    """See the module.  ``ids`` are the journal's, by place in the workload from 0; ``records`` are by id.

    ``config`` is the run's, with the policy that decided most of it.  ``live``: a device took its step times.
    """

    path: Path
    live: bool
    config: Config
    workload: Workload
    ids: list[RequestId]
    records: dict[RequestId, RequestRecord]
    steps: list[MeasuredStep]
    reigns: list[Reign]
    notes: list[str]

    @property
    def compared(self) -> list[int]:
        """Places in the workload, from 1."""
        records = self.records
        return [place for place, id in enumerate(self.ids, 1) if id in records and records[id].reason]


def read_recorded(path: Path, told: Callable[[int], None] | None = None) -> Recorded:
    """The run that the journal beginning at ``path`` records.  Raises ``UserError`` if it is damaged or holds none."""
    workload, ids = read_identified(path)
    parts = stretches(path, told)
    found = _Reader()
    try:
        for part in parts:
            found.read(part)
    except MISFIT as error:
        raise misfit(path, error) from None
    reign = most_of(found.reigns)
    config = config_of(parts[-1].header, str(path))
    scheduler = msgspec.structs.replace(config.scheduler, policy=reign.policy, options=reign.options)
    recorded = Recorded(
        path,
        parts[-1].header.shell != SIMULATED,
        msgspec.structs.replace(config, scheduler=scheduler),
        workload,
        ids,
        found.records,
        found.steps,
        found.reigns,
        [],
    )
    recorded.notes += [*workload.notes, *_notes(recorded, found)]
    return recorded


class _Reader:
    """Reads stretches one after another."""

    def __init__(self) -> None:
        self.records: dict[RequestId, RequestRecord] = {}
        self.steps: list[MeasuredStep] = []
        self.reigns: list[Reign] = []
        self.shared = 0
        """Requests that arrived while some of those were still there that had been there when the record begins."""

    def read(self, part: Stretch) -> None:
        snapshot = part.snapshot()
        carried = None if snapshot is None else [each.id for each in snapshot.requests]
        steps = StepReader(self.steps.append, carried)
        metrics = RunMetrics()
        take = Latecomers(metrics).observe if part.begins_late else metrics.observe
        here = dict.fromkeys(carried or ())
        header = part.header
        policy, options = (header.policy, header.options) if snapshot is None else (snapshot.policy, snapshot.options)
        begun = False
        for record in part.records():
            for now_ns, events, instructions in turns(record):
                if not begun:
                    self._decides(UsePolicy(policy, options), now_ns)
                    begun = True
                steps.observe(now_ns, events, instructions)
                take(now_ns, events, instructions)
                for event in events:
                    self._event(now_ns, event, bool(here))
                for each in instructions:
                    if isinstance(each, Launch):
                        self.reigns[-1].steps += 1
                    elif isinstance(each, PolicyFault):
                        self.reigns[-1].faulted = True
                    elif here:
                        _left(here, each)
        self.records.update(metrics.requests)

    def _event(self, now_ns: int, event: Event, crowded: bool) -> None:
        if isinstance(event, UsePolicy):
            self._decides(event, now_ns)
        elif crowded and isinstance(event, Submitted):
            self.shared += 1

    def _decides(self, it: UsePolicy, now_ns: int) -> None:
        last = self.reigns[-1] if self.reigns else None
        if last is None or (last.policy, last.options) != (it.name, it.options):
            self.reigns.append(Reign(it.name, it.options, now_ns))


def _left(here: dict[RequestId, None], instruction: Instruction) -> None:
    if isinstance(instruction, Finished):
        here.pop(instruction.request, None)


def most_of(reigns: list[Reign]) -> Reign:
    """The policy that decided most steps, of those that broke no rule if there is one.

    Raises ``UserError`` if there is none at all: a journal without a turn.
    """
    if not reigns:
        raise UserError("holds no turn: there is nothing to compare with", field="journal")
    steps: dict[tuple[str, str], int] = {}
    for each in reigns:
        key = each.policy, repr(sorted(each.options.items()))
        steps[key] = steps.get(key, 0) + each.steps
    faulted = {each.policy for each in reigns if each.faulted}

    def weight(each: Reign) -> tuple[bool, int]:
        return each.policy not in faulted, steps[each.policy, repr(sorted(each.options.items()))]

    return max(reigns, key=weight)


def _notes(it: Recorded, found: _Reader) -> list[str]:
    notes = []
    missing = len(it.ids) - len(it.compared)
    if missing:
        notes.append(
            f"{many(missing, 'request')} did not end in the record and {_are(missing)} left out of comparisons"
        )
    if found.shared:
        notes.append(
            f"{many(found.shared, 'request')} arrived while others were there that had come before the record begins:"
            " played again, they find the device emptier than it was"
        )
    if len(it.reigns) > 1:
        start_ns = it.reigns[0].from_ns
        told = ", then ".join(
            f"{each.policy}{' (broke a rule)' if each.faulted else ''}"
            + (f" from {(each.from_ns - start_ns) / NS_PER_S:.1f} s on" if each is not it.reigns[0] else "")
            + f" for {many(each.steps, 'step')}"
            for each in it.reigns
        )
        notes.append(
            f"more than one policy decided: {told}. The same policy again is {it.config.scheduler.policy} throughout,"
            " so what the others did shows as if it were an error of the prediction"
        )
    return notes


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
