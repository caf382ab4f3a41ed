"""A client: hands in its request, reads as slowly as it reads, and leaves when it leaves."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from anyio.abc import TaskGroup

from stepwell.core.engine import Engine
from stepwell.core.errors import CapacityError, InvariantError
from stepwell.core.page_keys import page_keys, salt_of
from stepwell.core.protocols import KVAllocator
from stepwell.core.sampling import SamplingParams
from stepwell.core.streams import Stream
from stepwell.core.types import NS_PER_S
from stepwell.tests.dst.clock import CrookedClock
from stepwell.tests.dst.scenario import Visit

SECRET = b"dst"


def keys_of(allocator: KVAllocator, prompt: Sequence[int], tenant: str) -> list[int]:
    """Page keys of what ``prompt`` fills; none if the allocator does not look for them."""
    return page_keys(prompt, allocator.key_tokens, salt_of(tenant, SECRET)) if allocator.reuses_prefixes else []


class ReaderBug(Exception):
    """A listener that breaks."""


class Client:
    """One visit, and what came of it."""

    def __init__(self, visit: Visit, engine: Engine, clock: CrookedClock) -> None:
        self.visit = visit
        self.engine = engine
        self.clock = clock
        self.stream: Stream | None = None
        self.got: list[int] = []
        self.refused = ""
        """Why the engine did not even take it."""
        self.raised: Exception | None = None
        """What its iteration ended with."""
        self.ends = 0
        """How often it was told that nothing more comes."""
        self.stopped = False
        self.left = False

    def submit(self, parent: int) -> Stream | None:
        """Hand the request in; None if it is refused at the door."""
        visit, allocator = self.visit, self.engine.scheduler.state.allocator
        try:
            self.stream = self.engine.submit(
                visit.prompt,
                visit.max_tokens,
                klass=visit.klass,
                tenant=visit.tenant,
                priority=visit.priority,
                program=visit.program,
                expires_ns=self.clock.now_ns() + visit.expires_ns if visit.expires_ns else 0,
                keys=keys_of(allocator, visit.prompt, visit.tenant),
                salt=salt_of(visit.tenant, SECRET),
                sampling=SamplingParams(ignore_eos=visit.endless, seed=visit.key),
                parent=parent,
            )
        except CapacityError as error:
            self.refused = error.code
        return self.stream

    async def stay(self, stream: Stream, tasks: TaskGroup) -> None:
        """Read until it ends."""
        if self.visit.leaves_ns:
            tasks.start_soon(self._leave_later, stream)
        if self.visit.listens:
            stream.listen(self)
        else:
            await self._read(stream)

    async def _leave_later(self, stream: Stream) -> None:
        if self.visit.leaves_ns > 1:  # or at once, before the engine has looked
            await self.clock.loop.sleep_until(self.clock.loop.now_ns() + self.visit.leaves_ns)
        self._leave(stream)

    def _leave(self, stream: Stream) -> None:
        """The second time on it is as if a second connection had been torn down for the same request."""
        self.left = True
        stream.cancel()
        for _ in range(self.visit.cancels - 1):
            stream.cancel()
            self.engine._cancel(stream.request)

    async def _read(self, stream: Stream) -> None:
        visit = self.visit
        try:
            async for tokens in stream:
                self.got += tokens
                if visit.leaves_after and len(self.got) >= visit.leaves_after and not self.left:
                    self._leave(stream)
                if visit.lag_ns:
                    await anyio.sleep(visit.lag_ns / NS_PER_S)
        except (CapacityError, InvariantError) as error:
            self.raised = error
        self.ends += 1

    # ---- as a listener

    def heard(self, tokens: Sequence[int]) -> None:
        visit, stream = self.visit, self.stream
        assert stream is not None
        self.got += tokens
        self.clock.spend(visit.lag_ns)
        if visit.raises_after and len(self.got) >= visit.raises_after:
            raise ReaderBug("no such letter")
        if visit.stops_after and len(self.got) == visit.stops_after:
            self.stopped = True
            self.engine.stop(stream.request, visit.keeps)
        if visit.leaves_after and len(self.got) >= visit.leaves_after and not self.left:
            self._leave(stream)

    def ended(self) -> None:
        self.ends += 1
