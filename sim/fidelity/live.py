"""A workload through the production engine, its model where a server has it, in real time.

Requests are handed in on time by a client in the engine's own event loop, whose listeners note when tokens come: what a
user of the library sees, and a connection before its bytes.  Latencies count from when a request was to be sent, not
from when its client got round to it.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepwell.core.build import build_scheduler, journal_header
from stepwell.core.clock import RealClock
from stepwell.core.config import Config
from stepwell.core.engine import Engine
from stepwell.core.errors import InvariantError, UserError
from stepwell.core.journal_file import JournalWriter
from stepwell.core.placement import Place
from stepwell.core.placement_open import make_place
from stepwell.core.registry import check_servable
from stepwell.core.sampling import SamplingParams
from stepwell.core.snapshot import capture
from stepwell.core.streams import Stream
from stepwell.core.types import FOREVER, NS_PER_MS
from stepwell.sim.fidelity.ends import EndsAt
from stepwell.sim.workload.request import Workload

SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True)
LEAD_NS = 200 * NS_PER_MS
"""From the start of the engine to the first arrival."""
BYTES = 256
"""The vocabulary of a model that has none."""


class ClientView(msgspec.Struct, array_like=True):
    """One request as its client saw it, in ns after the first was due: ``late_ns`` is how much later than
    ``arrival_ns`` it was handed in; 0 for tokens that never came."""

    arrival_ns: int
    late_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0
    tokens: int = 0
    reason: str = ""


class LiveRun(msgspec.Struct):
    """What the clients saw; the journal tells the rest."""

    requests: list[ClientView]
    model: str
    where: str


class _Client:
    """A listener: notes when its tokens come."""

    def __init__(self, view: ClientView, stream: Stream, clock: RealClock, start_ns: int) -> None:
        self._view, self._stream, self._clock, self._start_ns = view, stream, clock, start_ns
        stream.listen(self)

    def heard(self, tokens: Sequence[int]) -> None:
        now_ns = self._clock.now_ns() - self._start_ns
        view = self._view
        view.first_ns = view.first_ns or now_ns
        view.last_ns = now_ns
        view.tokens += len(tokens)

    def ended(self) -> None:
        finished, error = self._stream.finished, self._stream.error
        self._view.reason = finished.reason if finished is not None else f"{error}"


def run_live(config: Config, workload: Workload, journal: Path, *, seed: int = 0) -> LiveRun:
    """Serve ``workload`` under ``config`` (complete) in real time, its decisions written to ``journal``.

    Prompts are random token ids drawn by ``seed``.  Raises ``UserError`` if the model cannot be loaded or is too small
    for a request, and ``InvariantError`` if the engine broke down.
    """
    lengths = {id: each.output_tokens for id, each in enumerate(workload.requests, 1)}
    place = EndsAt(make_place(config), lengths)
    try:
        info = place.open()
        context = config.scheduler.max_context
        if info.context and not 0 < context <= info.context:
            raise UserError(f"must be 1 … {info.context}, the model's context", field="scheduler.max_context")
        draw = random.Random(seed)
        ids = range(info.vocab_size or BYTES)
        prompts = [draw.choices(ids, k=each.prompt_tokens) for each in workload.requests]
        return LiveRun(asyncio.run(_serve(config, workload, prompts, place, journal)), info.model, place.where)
    finally:
        place.close()


async def _serve(
    config: Config, workload: Workload, prompts: Sequence[list[int]], place: Place, journal: Path
) -> list[ClientView]:
    scheduler = build_scheduler(config)
    check_servable(scheduler.state.policy)
    writer = JournalWriter(
        journal,
        journal_header(config, scheduler, "engine"),
        lambda: msgspec.json.encode(capture(scheduler)),
        batch_turns=1,
    )
    clock = RealClock()
    engine = Engine(scheduler, place, clock, observers=[writer.observe])
    gc.collect()
    gc.disable()
    try:
        serving = asyncio.create_task(engine.run())
        views = await _play(engine, clock, workload, prompts)
        await serving
    finally:
        gc.enable()
        writer.close()
    if engine.failed:
        raise InvariantError(f"the engine stopped: {engine.failed}")
    return views


async def _play(engine: Engine, clock: RealClock, workload: Workload, prompts: Sequence[list[int]]) -> list[ClientView]:
    start_ns = clock.now_ns() + LEAD_NS
    views = []
    for each, prompt in zip(workload.requests, prompts, strict=True):
        await clock.sleep_until(start_ns + each.arrival_ns)
        view = ClientView(each.arrival_ns, clock.now_ns() - start_ns - each.arrival_ns)
        views.append(view)
        stream = engine.submit(
            prompt,
            FOREVER,
            klass=each.klass,
            tenant=each.tenant,
            priority=each.priority,
            program=each.program,
            sampling=SAMPLING,
        )
        _Client(view, stream, clock, start_ns)
    await engine.drained()
    engine.close()
    return views
