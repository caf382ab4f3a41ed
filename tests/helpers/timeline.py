"""What became of every request, told from the events and instructions alone: an observer for either shell.

It is naive on purpose: it walks the whole decode group each step, and so checks the counters of the core, which don't.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepwell.core.events import Event, RunDone, StepDone, StepFailed, Submitted
from stepwell.core.instructions import (
    Admitted,
    Finished,
    Instruction,
    Launch,
    Preempted,
    Rejected,
    Resumed,
    Run,
    SliceRow,
)

Turn = tuple[int, list[Event], list[Instruction]]


@dataclass
class Story:
    """One request.  ``token_ns`` and ``positions`` run in parallel: when a token existed, and how many were before."""

    prompt: int
    arrival_ns: int
    token_ns: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slices: list[tuple[int, SliceRow]] = field(default_factory=list)
    """(time of launch, row)."""
    admissions: list[int] = field(default_factory=list)
    resumptions: list[int] = field(default_factory=list)
    preemptions: list[tuple[int, Preempted]] = field(default_factory=list)
    reason: str = ""
    end_ns: int = -1

    @property
    def first_ns(self) -> int:
        return self.token_ns[0] if self.token_ns else -1

    def outcome(self) -> tuple[list[int], int, str, int]:
        """Everything that a second implementation must agree on."""
        return self.token_ns, self.end_ns, self.reason, len(self.preemptions)


class Timeline:
    """Attach it as an observer.  ``stories`` by request; ``turns`` are kept if ``keep`` is set."""

    def __init__(self, *, keep: bool = False) -> None:
        self.stories: dict[int, Story] = {}
        self.turns: list[Turn] = []
        self.launches = 0
        self.computed = 0
        """Token positions computed by all requests together, recomputed ones included."""
        self._keep = keep
        self._members: dict[int, int] = {}
        self._context: dict[int, int] = {}
        self._inflight: dict[int, list[tuple[int, int]]] = {}

    def __call__(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        if self._keep:
            self.turns.append((now_ns, list(events), list(out)))
        for event in events:
            if isinstance(event, Submitted):
                self.stories[event.request] = Story(event.prompt_tokens, now_ns)
            elif isinstance(event, StepDone):
                self._done(event.step, now_ns)
            elif isinstance(event, RunDone):
                for step, done_ns in enumerate(event.done_ns, event.step):
                    self._done(step, done_ns)
                    self._inflight[step + 1] = self._decode()
                    self.launches += 1
            elif isinstance(event, StepFailed):
                self._inflight.clear()
                self._members.clear()
        for instruction in out:
            self._follow(now_ns, instruction)

    def _follow(self, now_ns: int, it: Instruction) -> None:
        if isinstance(it, Launch):
            self._launch(now_ns, it)
        elif isinstance(it, Finished):
            story = self.stories[it.request]
            assert story.end_ns == -1, f"request {it.request} ends twice: {story.reason}, {it.reason}"
            story.end_ns, story.reason = now_ns, it.reason
            assert it.tokens == len(story.token_ns), (it, story)
        elif isinstance(it, Rejected):
            story = self.stories[it.request]
            assert story.end_ns == -1
            story.end_ns, story.reason = now_ns, "rejected"
        elif isinstance(it, Preempted):
            self.stories[it.request].preemptions.append((now_ns, it))
        elif isinstance(it, Admitted):
            self.stories[it.request].admissions.append(now_ns)
        elif isinstance(it, Resumed):
            self.stories[it.request].resumptions.append(now_ns)

    def _launch(self, now_ns: int, launch: Launch) -> None:
        self.launches += 1
        for id in launch.left:
            del self._members[id]
        for id in launch.joined:
            assert id not in self._members, f"request {id} joins twice"
            self._members[id] = self._context[id]
        sampled = self._decode() if launch.decode else []
        for row in launch.slices:
            id, start, tokens, samples = row
            assert not (launch.decode and id in self._members), f"request {id} computes twice in step {launch.step}"
            self.stories[id].slices.append((now_ns, row))
            self.computed += tokens
            if samples:
                self._context[id] = start + tokens
                sampled.append((id, start + tokens))
        self._inflight[launch.step] = sampled

    def _decode(self) -> list[tuple[int, int]]:
        members = self._members
        for id in members:
            members[id] += 1
        self.computed += len(members)
        return list(members.items())

    def _done(self, step: int, now_ns: int) -> None:
        for id, position in self._inflight.pop(step):
            story = self.stories[id]
            if story.end_ns != -1:
                continue
            expected = story.prompt + len(story.token_ns)
            assert position == expected, f"request {id} samples at {position} in step {step}, expected {expected}"
            story.token_ns.append(now_ns)
            story.positions.append(position)


def step_by_step(turns: Sequence[Turn]) -> list[Turn]:
    """The same turns with every run of repeated steps written out as the single steps that it stands for."""
    plain: list[Turn] = []
    launched_ns = 0
    for now_ns, events, out in turns:
        run = events[0] if events else None
        if isinstance(run, RunDone):
            answer = out[0]
            assert isinstance(answer, Run)
            assert len(events) == len(out) == 1
            assert (answer.step, answer.count) == (run.step + 1, len(run.done_ns))
            growth: list[list[int]] = [[] for _ in run.done_ns]
            for offset, request, page in zip(*[iter(answer.growth)] * 3, strict=True):
                growth[offset] += (request, page)
            for step, done_ns in enumerate(run.done_ns, run.step):
                plain.append((done_ns, [StepDone(step, [], done_ns - launched_ns)], []))
                plain[-1][2].append(Launch(step + 1, True, growth[step - run.step]))
                launched_ns = done_ns
        else:
            plain.append((now_ns, events, out))
            if any(isinstance(each, Launch) for each in out):
                launched_ns = now_ns
    return plain
