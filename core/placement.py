"""Where a backend's steps are executed: on the event loop, in a thread, or in a process of its own.

One code for all three: what a step needs is one message (``StepBatch``), and what comes of it another (``StepResult``).
The engine speaks to a ``Place``; ``core.placement_process`` has the one that outlives its process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
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


class Admission(msgspec.Struct, array_like=True, gc=False):
    """A request as its backend must know it; ``output`` is what it has said already, after a restart."""

    request: RequestId
    prompt: list[int]
    max_tokens: int
    sampling: SamplingParams
    output: list[int] = []


class StepBatch(msgspec.Struct, array_like=True, gc=False, tag="step"):
    """One step, and what has to be known before it: requests that came and requests that went."""

    launch: Launch
    admitted: list[Admission] = []
    released: list[RequestId] = []


class Preparation(msgspec.Struct, array_like=True, tag="prepare"):
    """A grammar that a request will come with; ``number`` is said back when it is ready."""

    number: int
    grammar: Grammar


def prepare(backend: Backend, grammar: Grammar) -> None:
    """Beside a step.  Raises ``UserError`` for what is no grammar, and of a backend that has none."""
    if not isinstance(backend, Constrains):
        raise UserError("this model's backend holds no answer to a grammar", field="structured_outputs")
    backend.prepare(grammar)


def carry_out(backend: Backend, batch: StepBatch) -> StepResult:
    """Tell the backend what is new, and execute."""
    for each in batch.admitted:
        backend.admit(each.request, each.prompt, each.max_tokens, each.sampling, each.output)
    for request in batch.released:
        backend.release(request)
    return backend.execute(batch.launch)


def unchanging(prompt: Sequence[int]) -> list[int]:
    """The ids as a list that nobody changes; shared, if they are already."""
    return prompt if isinstance(prompt, PromptIds) else list(prompt)


@runtime_checkable
class Place(Protocol):
    """What the engine asks of wherever steps are executed.  One step at a time."""

    @property
    def where(self) -> str:
        """For people."""
        ...

    @property
    def restarts(self) -> int:
        """How often whatever executes has been started again."""
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

    async def carry_out(self, launch: Launch) -> StepResult:
        """Execute a step.  A failure is a result; an exception means that nothing can be executed any more."""
        ...

    async def run(self) -> None:
        """Look after the place until cancelled."""
        ...

    def close(self) -> None:
        """Nothing is executed any more.  Harmless the second time."""
        ...


class Inline:
    """On the event loop, which waits meanwhile: for tests, virtual time, and backends that take none."""

    where = "on the event loop"
    trouble = ""
    restarts = 0

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.admit = backend.admit
        self.release = backend.release
        self.close = backend.close

    def open(self) -> BackendInfo:
        return self._backend.info

    async def prepare(self, grammar: Grammar) -> None:
        prepare(self._backend, grammar)

    async def carry_out(self, launch: Launch) -> StepResult:
        return self._backend.execute(launch)

    async def run(self) -> None:
        """Nothing to look after."""


class Orders:
    """What a place elsewhere is not told yet: it goes with the next step.

    A request that comes and goes in between is never told of, and held no longer than it lives.
    """

    def __init__(self, admitted: Iterable[Admission] = ()) -> None:
        self._admitted = {each.request: each for each in admitted}
        self._released: list[RequestId] = []

    def admit(self, each: Admission) -> None:
        self._admitted[each.request] = each

    def release(self, request: RequestId) -> None:
        if self._admitted.pop(request, None) is None:
            self._released.append(request)

    def take(self, launch: Launch) -> StepBatch:
        """Everything so far, and the step."""
        batch = StepBatch(launch, list(self._admitted.values()), self._released)
        self._admitted, self._released = {}, []
        return batch


class Threaded:
    """In one thread of its own, always the same: a device's libraries keep state by thread.

    The event loop goes on, as far as the backend gives up the interpreter's lock.
    """

    where = "in a thread"
    trouble = ""
    restarts = 0

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
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

    async def carry_out(self, launch: Launch) -> StepResult:
        batch = self._orders.take(launch)
        return await asyncio.wrap_future(self._executor.submit(carry_out, self._backend, batch))

    async def run(self) -> None:
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
