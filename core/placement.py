"""Where a backend's steps are executed: on the event loop, in a thread, or in a process of its own.

One code for all three: what a step needs is one message (``StepBatch``), and what comes of it another (``StepResult``).
The engine speaks to a ``Place``; ``core.placement_process`` has the one that outlives its process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Literal, Protocol, runtime_checkable

import anyio.to_thread
import msgspec

from stepwell.core.errors import UserError
from stepwell.core.execution import Backend, BackendInfo, Constrains, PromptIds, StepResult
from stepwell.core.grammar import Grammar
from stepwell.core.instructions import Launch
from stepwell.core.sampling import GREEDY, SamplingParams
from stepwell.core.types import RequestId

Placement = Literal["process", "thread", "inline"]

Ask = Callable[[], Awaitable[StepResult]]
"""Waits for what comes of a step.  A failure is a result; an exception means that nothing can be executed any more."""


class Admission(msgspec.Struct, array_like=True, gc=False):
    """A request as its backend must know it; ``output`` is what it has said already, after a restart."""

    request: RequestId
    prompt: list[int]
    max_tokens: int
    sampling: SamplingParams
    output: list[int] = []


class StepBatch(msgspec.Struct, array_like=True, gc=False, tag="step"):
    """One step, and what has to be known before it: requests that came and requests that went.

    ``epoch`` counts the failures that were known when it was launched: one that was launched before its failure was
    known is void.
    """

    launch: Launch
    admitted: list[Admission] = []
    released: list[RequestId] = []
    epoch: int = 0


class Preparation(msgspec.Struct, array_like=True, tag="prepare"):
    """A grammar that a request will come with; ``number`` is said back when it is ready."""

    number: int
    grammar: Grammar


def prepare(backend: Backend, grammar: Grammar) -> None:
    """Beside a step.  Raises ``UserError`` for what is no grammar, and of a backend that has none."""
    if not isinstance(backend, Constrains):
        raise UserError("this model's backend holds no answer to a grammar", field="structured_outputs")
    backend.prepare(grammar)


class Execution:
    """A backend and the steps that it was sent, some of them before anybody knew that one before them had failed."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._void = -1
        """The epoch in which a step failed last."""

    def carry_out(self, batch: StepBatch) -> StepResult | None:
        """Tell the backend what is new, and execute; None if the step is void.

        What the backend raises makes the rest void, too.
        """
        for each in batch.admitted:
            self._backend.admit(each.request, each.prompt, each.max_tokens, each.sampling, each.output)
        for request in batch.released:
            self._backend.release(request)
        if batch.epoch <= self._void:
            return None
        result = None
        try:
            result = self._backend.execute(batch.launch)
        finally:
            if result is None or result.failed:
                self._void = batch.epoch
        return result


def unchanging(prompt: Sequence[int]) -> list[int]:
    """The ids as a list that nobody changes; shared, if they are already."""
    return prompt if isinstance(prompt, PromptIds) else list(prompt)


@runtime_checkable
class Place(Protocol):
    """What the engine asks of wherever steps are executed: one after another, in the order in which they were begun."""

    @property
    def where(self) -> str:
        """For people."""
        ...

    @property
    def restarts(self) -> int:
        """How often whatever executes has been started again."""
        ...

    @property
    def device_faults(self) -> int:
        """How many of these had to be because the device failed."""
        ...

    @property
    def trouble(self) -> str:
        """Why no step can be executed right now; empty if all is well."""
        ...

    def open(self) -> BackendInfo:
        """Wait until the backend is ready, and say what it is; at once if it is.  Raises ``UserError``."""
        ...

    def admit(
        self, request: RequestId, prompt: Sequence[int], max_tokens: int, sampling: SamplingParams = GREEDY
    ) -> None:
        """Make a request known to the steps after this; raises ``UserError`` if the backend cannot take it."""
        ...

    def release(self, request: RequestId) -> None:
        """The request ended; forget it."""
        ...

    async def prepare(self, grammar: Grammar) -> None:
        """Make a grammar ready before a request comes with it; raises ``UserError`` if it is none."""
        ...

    def begin(self, launch: Launch) -> Ask:
        """Execute a step as soon as those before it are done.  What comes of it is asked in the order of the steps, and
        once."""
        ...

    def drop(self) -> None:
        """A failed result was told: whatever was begun and not asked about is void, and nobody will ask."""
        ...

    async def run(self, lost: Callable[[Ask], None]) -> None:
        """Look after the place until cancelled.

        If all that was on the device is lost and no step is there that could say so, ``lost`` is told, with the result
        of a step 0.  That one is asked and dropped as any other.
        """
        ...

    def close(self) -> None:
        """Nothing is executed any more.  Harmless the second time."""
        ...


class Inline:
    """On the event loop, which waits meanwhile: for tests, virtual time, and backends that take none."""

    where = "on the event loop"
    trouble = ""
    restarts = 0
    device_faults = 0

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.admit = backend.admit
        self.release = backend.release
        self.close = backend.close

    def open(self) -> BackendInfo:
        return self._backend.info

    async def prepare(self, grammar: Grammar) -> None:
        prepare(self._backend, grammar)

    def begin(self, launch: Launch) -> Ask:
        return partial(self._execute, launch)

    async def _execute(self, launch: Launch) -> StepResult:
        return self._backend.execute(launch)

    def drop(self) -> None:
        """Nothing was begun that nobody asked about."""

    async def run(self, lost: Callable[[Ask], None]) -> None:
        """Nothing to look after."""


class Orders:
    """What a place elsewhere is not told yet: it goes with the next step.

    A request that comes and goes in between is never told of, and held no longer than it lives.
    """

    def __init__(self, admitted: Iterable[Admission] = ()) -> None:
        self._admitted = {each.request: each for each in admitted}
        self._released: list[RequestId] = []
        self.epoch = 0
        """Failures that are known."""

    def admit(self, each: Admission) -> None:
        self._admitted[each.request] = each

    def release(self, request: RequestId) -> None:
        if self._admitted.pop(request, None) is None:
            self._released.append(request)

    def take(self, launch: Launch) -> StepBatch:
        """Everything so far, and the step."""
        batch = StepBatch(launch, list(self._admitted.values()), self._released, self.epoch)
        self._admitted, self._released = {}, []
        return batch


class Threaded:
    """In one thread of its own, always the same: a device's libraries keep state by thread.

    The event loop goes on, as far as the backend gives up the interpreter's lock.
    """

    where = "in a thread"
    trouble = ""
    restarts = 0
    device_faults = 0

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._execution = Execution(backend)
        self._orders = Orders()
        self._executor = ThreadPoolExecutor(1, "stepwell-backend")
        self._closed = False

    def open(self) -> BackendInfo:
        return self._backend.info

    def admit(
        self, request: RequestId, prompt: Sequence[int], max_tokens: int, sampling: SamplingParams = GREEDY
    ) -> None:
        self._backend.info.check_prompt(prompt)
        self._orders.admit(Admission(request, unchanging(prompt), max_tokens, sampling))

    def release(self, request: RequestId) -> None:
        self._orders.release(request)

    async def prepare(self, grammar: Grammar) -> None:
        await anyio.to_thread.run_sync(prepare, self._backend, grammar)

    def begin(self, launch: Launch) -> Ask:
        batch = self._orders.take(launch)
        return partial(self._result, self._executor.submit(self._execution.carry_out, batch))

    async def _result(self, future: Future[StepResult | None]) -> StepResult:
        result = await asyncio.wrap_future(future)
        assert result is not None, "nobody asks about what is void"
        return result

    def drop(self) -> None:
        self._orders.epoch += 1

    async def run(self, lost: Callable[[Ask], None]) -> None:
        """Nothing to look after."""

    def close(self) -> None:
        """A step that is being executed is waited for by nobody."""
        if not self._closed:
            self._closed = True
            self._executor.submit(self._backend.close)
            self._executor.shutdown(wait=False)


def as_place(backend: Backend | Place) -> Place:
    """A backend by itself is executed on the event loop."""
    return backend if isinstance(backend, Place) else Inline(backend)
