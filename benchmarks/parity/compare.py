"""Tells two lists of steps apart: how many are the same, and what is different first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from stepwell.benchmarks.parity.ours import Step
from stepwell.core.types import RequestId

EMPTY: Step = ([], [], [], [])


class Score(msgspec.Struct):
    """Of one workload.  A decision is what a step does with one request.

    ``steps_same`` counts every equal pair of steps, those after a difference too; ``steps_before`` only those before
    the first difference of their episode.
    """

    episodes: int = 0
    episodes_same: int = 0
    steps: int = 0
    steps_same: int = 0
    steps_before: int = 0
    decisions: int = 0
    decisions_same: int = 0
    preemptions: int = 0
    first: str = ""

    def add(self, ours: Sequence[Step], real: Sequence[Step]) -> None:
        """One more episode."""
        whole = True
        self.episodes += 1
        for step, (mine, theirs) in enumerate(zip_longest(ours, real, fillvalue=EMPTY)):
            same = mine == theirs
            if not same and whole:
                whole = False
                self.first = self.first or f"episode {self.episodes}, step {step + 1}: {in_words(mine, theirs)}"
            self.steps += 1
            self.steps_same += same
            self.steps_before += whole
            self.preemptions += len(theirs[2])
            one, other = decisions(mine), decisions(theirs)
            for id in one | other:
                self.decisions += 1
                self.decisions_same += one.get(id) == other.get(id)
        self.episodes_same += whole


def decisions(step: Step) -> dict[RequestId, list[str]]:
    """What a step does with each request that it does anything with, in words."""
    tokens, admitted, preempted, ended = step
    said: dict[RequestId, list[str]] = {}
    for id in preempted:
        said.setdefault(id, []).append("preempted")
    for id in admitted:
        said.setdefault(id, []).append("admitted")
    for id, count in tokens:
        said.setdefault(id, []).append(f"{count} tokens")
    for id in ended:
        said.setdefault(id, []).append("ended")
    return said


def in_words(ours: Step, real: Step) -> str:
    one, other = decisions(ours), decisions(real)
    for id in sorted(one | other):
        mine, theirs = one.get(id), other.get(id)
        if mine != theirs:
            return f"request {id} {', '.join(theirs or ['waits'])} in vLLM and {', '.join(mine or ['waits'])} here"
    return f"admitted in the order {real[1]} in vLLM and {ours[1]} here"
