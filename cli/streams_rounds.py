"""How long the steps of a few requests took, round by round, as a server's journal has them.

In every round the same few requests run, and nobody beside them: as many tokens of prompt, as many of answer, all at
once.  What a round counts are the steps in which all of them decode, so two rounds compare step by step.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepwell.cli.streams_beside import TOKENS, Round
from stepwell.core.build_kind import build_kind
from stepwell.core.errors import UserError
from stepwell.core.events import Event, Submitted
from stepwell.core.instructions import Admitted, Finished, Instruction
from stepwell.core.types import NS_PER_MS, RequestId
from stepwell.sim.bench import Line
from stepwell.sim.journal_read import stretches, turns
from stepwell.sim.stats import percentiles
from stepwell.sim.step_reader import MeasuredStep, StepReader

RUNNER = -1
"""Priority by which a request of a round is known in the journal; everybody else has another."""


class RoundReader:
    """Follows a journal from its beginning.  ``few`` requests make a round; ``rounds`` are the steps of each.

    ``everybody``: all requests are of rounds, whatever their priority.
    """

    def __init__(self, few: int, *, everybody: bool = False) -> None:
        self.rounds: list[list[MeasuredStep]] = []
        self._few = few
        self._everybody = everybody
        self._running: set[RequestId] = set()
        self._arrived: set[RequestId] = set()
        self._all_there = False
        self._steps = StepReader(self._found)

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """One turn, repeated steps one by one."""
        for event in events:
            if isinstance(event, Submitted) and (self._everybody or event.priority == RUNNER):
                self._arrived.add(event.request)
        self._steps.observe(now_ns, events, instructions)
        for each in instructions:
            if isinstance(each, Admitted) and each.request in self._arrived:
                self._running.add(each.request)
                if len(self._running) == self._few:
                    self._all_there = True
                    self.rounds.append([])
            elif isinstance(each, Finished) and each.request in self._arrived:
                self._running.discard(each.request)
                self._arrived.discard(each.request)
                self._all_there = False

    def _found(self, step: MeasuredStep) -> None:
        shape = step.shape
        if self._all_there and not shape.prefill_tokens and shape.decode_requests == self._few:
            self.rounds[-1].append(step)


def rounds_of(folder: Path, few: int, *, everybody: bool = False) -> list[list[MeasuredStep]]:
    """Of the newest journal in ``folder``.  Raises ``UserError`` if there is none, or not a whole one."""
    first = [path for path in folder.iterdir() if len(path.suffixes) == 1]
    if not first:
        raise UserError(f"{folder} holds no journal", field="journal")
    newest = max(first, key=lambda path: path.stat().st_mtime_ns)
    parts = stretches(newest)
    if len(parts) != 1 or parts[0].begins_late:
        raise UserError(f"{newest}: a part of the journal is missing", field="journal")
    reader = RoundReader(few, everybody=everybody)
    for record in parts[0].records():
        for moment in turns(record):
            reader.observe(*moment)
    return reader.rounds


def round_line(steps: Sequence[MeasuredStep]) -> Line:
    """``step``: from one step's end to the next one's.  ``device``: what the backend took of it; ``gap``: the rest, in
    which the device had nothing to do."""
    line: Line = {"steps": len(steps), "kv_tokens_p50": _middle([each.shape.kv_tokens for each in steps])}
    for name, times_ns in (
        ("step", [each.period_ns for each in steps]),
        ("device", [each.elapsed_ns for each in steps]),
        ("gap", [each.period_ns - each.elapsed_ns for each in steps]),
    ):
        for word, found in zip(("p50", "p99"), percentiles(times_ns, (0.5, 0.99)), strict=True):
            line[f"{name}_{word}_ms"] = None if found is None else round(found / NS_PER_MS, 3)
    return line


def ratios(alone: Sequence[MeasuredStep], beside: Sequence[MeasuredStep]) -> Line:
    """Of the medians and the 99th percentiles of all rounds beside the crowd by those of all rounds without."""
    one, two = round_line(alone), round_line(beside)
    line: Line = {}
    for name in ("step_p50", "step_p99", "device_p50", "gap_p50"):
        before, after = one[f"{name}_ms"], two[f"{name}_ms"]
        line[f"{name}_ratio"] = _ratio(before, after)
    return line


def _ratio(before: object, after: object) -> float | None:
    if isinstance(before, float) and isinstance(after, float) and before > 0:
        return round(after / before, 3)
    return None


def _middle(values: Sequence[int]) -> int | None:
    (found,) = percentiles(values, (0.5,))
    return None if found is None else int(found)


def line_of(
    args: argparse.Namespace, rounds: Sequence[Round], wrong: Sequence[str], steps: Sequence[Sequence[MeasuredStep]]
) -> Line:
    """``steps`` of each of the ``rounds``, as the journal has them."""
    if len(steps) != len(rounds) or not all(steps):
        wrong = [*wrong, f"the journal tells of {len(steps)} rounds, and {len(rounds)} were run"]
    told = [msgspec.structs.asdict(each) | round_line(found) for each, found in zip(rounds, steps, strict=False)]
    line: Line = {
        "build": build_kind(),
        "scenario": args.scenario,
        "model": args.model,
        "users": args.users,
        "few": args.few,
        "tokens": args.tokens or TOKENS,
        "patience_s": args.think,
        "sse_share": args.sse_share,
    }
    alone = [step for each, found in zip(rounds, steps, strict=False) if not each.crowd for step in found]
    beside = [step for each, found in zip(rounds, steps, strict=False) if each.crowd for step in found]
    return {**line, **ratios(alone, beside), "rounds": told, "wrong": list(wrong)}


def in_words(line: Line) -> str:
    """For a person."""
    rounds = line["rounds"]
    assert isinstance(rounds, list)
    told = [f"{line['engine']}, {line['scenario']} of {line['model']}, {line['few']} running, {line['users']:,} users:"]
    told += [
        f"  beside {each['crowd']:,} clients: a step p50 {each['step_p50_ms']} ms,"
        f" p99 {each['step_p99_ms']} ms, of which the device {each['device_p50_ms']} and {each['device_p99_ms']},"
        f" between steps {each['gap_p50_ms']} and {each['gap_p99_ms']} ms ({each['steps']} steps,"
        f" {each['kv_tokens_p50']} KV tokens); cores {each['server_cores']} server, {each['worker_cores']} worker,"
        f" {each['client_cores']} load generator"
        for each in rounds
    ]
    told.append(f"  beside the crowd / without: p50 {line['step_p50_ratio']}, p99 {line['step_p99_ratio']}")
    if line["wrong"]:
        told.append(f"  WRONG: {line['wrong']}")
    return "\n".join(told)
