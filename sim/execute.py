"""Executes a journal's plans on a backend, and holds how long each step takes to what was predicted.

Nothing is decided again: the recorded launches say what every step computes, who joins and who leaves, whatever tokens
come out.  Steps, arrivals and ends reach the backend in the order in which they did when they were recorded.  A journal
without token ids gets random ones; the plan decides who ends, so they change nothing but the text.

A journal that begins in the middle (a gap, older segments deleted) is executed without the requests that were there
already: their tokens and pages are not in it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from stepwell.core.errors import UserError
from stepwell.core.events import Event, StepDone, StepFailed, Submitted
from stepwell.core.instructions import Finished, Instruction, Launch, Rejected
from stepwell.core.journal import Prompt
from stepwell.core.protocols import Backend, CostModel, StepResult
from stepwell.core.sampling import SamplingParams
from stepwell.core.types import FOREVER, Page, RequestId
from stepwell.sim.journal_read import MISFIT, Stretch, misfit, stretches, turns
from stepwell.sim.mirror import BatchMirror
from stepwell.sim.step_times import StepTime, StepTimes

SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True)

LIVE = "engine"
"""The shell whose journals hold times that a device took."""


class _EnoughError(Exception):
    """As many steps as were asked for."""


def execute(
    path: Path,
    backend: Backend,
    cost: CostModel,
    *,
    vocabulary: int,
    limit: int = 0,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> StepTimes:
    """Execute the journal that begins at ``path``, ``limit`` steps of it at most (0: all).

    Token ids that it does not hold are drawn from ``vocabulary`` by ``seed``.  Raises ``UserError`` for a damaged
    journal and for a step that the backend cannot execute.
    """
    parts = stretches(path)
    times = StepTimes(parts[0].header.shell == LIVE)
    run = _Execution(backend, cost, times, limit, progress, random.Random(seed), vocabulary)
    try:
        for part in parts:
            run.stretch(part)
    except _EnoughError:
        pass
    except MISFIT as error:
        raise misfit(path, error) from None
    return times


class _Execution:
    def __init__(
        self,
        backend: Backend,
        cost: CostModel,
        times: StepTimes,
        limit: int,
        progress: Callable[[int], None] | None,
        draw: random.Random,
        vocabulary: int,
    ) -> None:
        self._backend = backend
        self._cost = cost
        self._times = times
        self._limit = limit
        self._progress = progress
        self._draw = draw
        self._vocabulary = vocabulary
        self._late = False
        self._prompts: dict[RequestId, list[int]] = {}
        self._known: set[RequestId] = set()
        """Those that arrived in this stretch, ended ones included."""
        self._live: dict[RequestId, None] = {}
        self._queue: deque[Launch] = deque()
        """Steps in flight; the first is the one being executed."""
        self._ended: list[RequestId] = []
        """They end once that one is done: it still names them."""
        self._members: dict[RequestId, None] = {}
        self._orphans: list[RequestId] = []
        """Members of a decode group that was given up: the next launch takes them out."""
        self._mirror = BatchMirror(lambda id: FOREVER if id in self._live else 0)

    def stretch(self, part: Stretch) -> None:
        """Everything in it; what was there before is forgotten."""
        self._fail()
        self._ended += self._live
        self._release()
        self._known.clear()
        self._late = part.begins_late
        for record in part.records():
            if isinstance(record, Prompt):
                self._prompts[record.request] = record.tokens
            for _, events, instructions in turns(record):
                self._turn(events, instructions)

    def _turn(self, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        for event in events:
            if isinstance(event, StepDone):
                self._done(event)
            elif isinstance(event, StepFailed):
                self._fail()
            elif isinstance(event, Submitted):
                self._admit(event)
        for instruction in instructions:
            if isinstance(instruction, Finished | Rejected) and instruction.request in self._known:
                self._ended.append(instruction.request)
        if not self._queue:
            self._release()
        self._queue += [each for each in instructions if isinstance(each, Launch)]

    def _admit(self, event: Submitted) -> None:
        request = event.request
        tokens = self._prompts.pop(request, None)
        if tokens is None:
            tokens = self._draw.choices(range(self._vocabulary), k=event.prompt_tokens)
        self._known.add(request)
        self._live[request] = None
        try:
            self._backend.admit(request, tokens, event.max_tokens, SAMPLING)
        except UserError as error:
            raise UserError(f"request {request} of the journal does not suit this model: {error}") from None

    def _release(self) -> None:
        for request in self._ended:
            del self._live[request]
            self._mirror.release(request)
            self._backend.release(request)
        self._ended.clear()

    def _done(self, done: StepDone) -> None:
        if not self._queue or self._queue[0].step != done.step:
            if self._late and (not self._queue or self._queue[0].step > done.step):
                return  # launched before the stretch began
            raise ValueError(f"step {done.step} is done, and is not the one that was launched")
        self._execute(self._queue.popleft(), done.elapsed_ns)
        self._release()

    def _fail(self) -> None:
        """All steps in flight are void, and the device has forgotten its decode group."""
        self._queue.clear()
        self._release()
        self._orphans += self._members
        self._members.clear()
        self._mirror.reset()

    def _execute(self, launch: Launch, recorded_ns: int) -> None:
        if self._late:
            launch = _part_of(launch, self._known)
        if self._orphans:
            launch.left = [*self._orphans, *(id for id in launch.left if id not in self._orphans)]
            self._orphans = []
        self._mirror.apply(launch)
        for id in launch.left:
            self._members.pop(id, None)
        self._members.update(dict.fromkeys(launch.joined))
        shape = self._mirror.shape
        try:
            result = self._backend.execute(launch)
        except MISFIT as error:
            result = StepResult(launch.step, failed=f"{type(error).__name__}: {error}")
        if result.failed:
            raise UserError(
                f"the backend could not execute step {launch.step} ({shape.prefill_tokens} prefill tokens,"
                f" {shape.decode_requests} decoding requests, {shape.kv_tokens} KV tokens): {result.failed}"
            )
        if shape.prefill_tokens or shape.decode_requests or shape.swap_pages:
            predicted_ns = self._cost.step_ns(shape)
            self._times.steps.append(StepTime(shape, result.elapsed_ns, predicted_ns, 0 if self._late else recorded_ns))
        steps = len(self._times.steps)
        if self._progress is not None:
            self._progress(steps)
        if self._limit and steps >= self._limit:
            raise _EnoughError


def _part_of(launch: Launch, known: set[RequestId]) -> Launch:
    """What of it concerns requests that are known."""
    pairs: list[tuple[RequestId, Page]] = list(zip(launch.growth[::2], launch.growth[1::2], strict=True))
    return Launch(
        launch.step,
        launch.decode,
        growth=[number for pair in pairs if pair[0] in known for number in pair],
        joined=[id for id in launch.joined if id in known],
        left=[id for id in launch.left if id in known],
        slices=[row for row in launch.slices if row[0] in known],
        tables=[row for row in launch.tables if row[0] in known],
        swap_out=[row for row in launch.swap_out if row[0] in known],
        swap_in=[row for row in launch.swap_in if row[0] in known],
        copies=launch.copies,
    )
