"""Lives one scenario through: the production engine in virtual time, its clients, its operator, its faults."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskGroup

from stepwell.core.build import build_scheduler, journal_header, make_shadow
from stepwell.core.clock import run_virtual
from stepwell.core.config import Config
from stepwell.core.engine import Engine
from stepwell.core.errors import UserError
from stepwell.core.events import Pause, ResetCache
from stepwell.core.journal_file import JournalWriter, later_segments
from stepwell.core.placement import Inline, Place
from stepwell.core.placement_process import Process
from stepwell.core.scheduler import Scheduler
from stepwell.core.snapshot import capture
from stepwell.core.types import NS_PER_S
from stepwell.sim.metrics import RunMetrics
from stepwell.tests.dst.client import Client, keys_of
from stepwell.tests.dst.clock import CrookedClock
from stepwell.tests.dst.device import Device, Script, Worker, starter
from stepwell.tests.dst.scenario import Act, Close, Hold, Pin, Reset, Scenario, UsePolicy, Visit
from stepwell.tests.dst.watch import Watch

PATIENCE_S = 3600.0
"""Of the loop's time: whatever is not over then hangs."""


@dataclass
class Life:
    """A scenario and what came of it: ``tasks`` that were left over, and the files of its ``journal``."""

    scenario: Scenario
    engine: Engine
    watch: Watch
    script: Script
    metrics: RunMetrics
    devices: list[Device]
    clients: dict[int, Client] = field(default_factory=dict)
    tasks: int = 0
    killed: bool = False
    journal: list[Path] = field(default_factory=list)


def live(scenario: Scenario, folder: Path) -> Life:
    """Until everybody has gone; the journal is in ``folder``.

    Raises what the clients raise, and ``TimeoutError`` if somebody waits for ever.
    """
    config = scenario.house.config()
    scheduler = build_scheduler(config, shadow=make_shadow(config))
    header = journal_header(config, scheduler, "test")
    path = folder / "run.jsonl"
    writer = JournalWriter(path, header, lambda: msgspec.json.encode(capture(scheduler)), batch_turns=16)
    watch = Watch(scenario, scheduler, writer)
    try:
        life = run_virtual(_main, scenario, config, scheduler, watch)
    finally:
        writer.close()
    life.journal = [path, *(each for _, each in later_segments(path))]
    return life


async def _main(scenario: Scenario, config: Config, scheduler: Scheduler, watch: Watch) -> Life:
    script = Script(scenario)
    clock = CrookedClock(scenario.twists)
    place, workers, device = _place(scenario, config, script)
    metrics = RunMetrics()
    engine = Engine(scheduler, place, clock, observers=[metrics.observe, watch.observe])
    life = Life(scenario, engine, watch, script, metrics, [device] if device else [])
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            serving = anyio.CancelScope()
            tasks.start_soon(_serve, engine, serving)
            for act in scenario.acts:
                tasks.start_soon(_act, life, serving, act)
            async with anyio.create_task_group() as visits:
                for visit in sorted(scenario.visits, key=lambda each: (each.at_ns, each.key)):
                    await clock.loop.sleep_until(visit.at_ns)
                    _welcome(life, visit, clock, visits)
            await engine.drained()
            await anyio.sleep(max([each.at_ns for each in scenario.acts], default=0) / NS_PER_S)
            engine.close()
    life.devices += [worker.device for worker in workers]
    life.tasks = len(asyncio.all_tasks()) - 1
    return life


def _place(scenario: Scenario, config: Config, script: Script) -> tuple[Place, list[Worker], Device | None]:
    if not scenario.house.process:
        device = Device(script, remote=False)
        return Inline(device), [], device
    workers, start = starter(script)
    return Process(config, start), workers, None


async def _serve(engine: Engine, scope: anyio.CancelScope) -> None:
    with scope:
        await engine.run()


def _welcome(life: Life, visit: Visit, clock: CrookedClock, visits: TaskGroup) -> None:
    client = life.clients[visit.key] = Client(visit, life.engine, clock)
    parent = life.clients.get(visit.parent)
    stream = client.submit(parent.stream.request if parent is not None and parent.stream is not None else 0)
    if stream is not None:
        life.script.lengths[stream.request] = visit.length
        life.watch.visits[stream.request] = visit
        visits.start_soon(client.stay, stream, visits)


async def _act(life: Life, serving: anyio.CancelScope, act: Act) -> None:
    await anyio.sleep(act.at_ns / NS_PER_S)
    engine = life.engine
    if engine._closed:
        return
    if isinstance(act, UsePolicy):
        engine.use_policy(act.name, act.options, "operator")
    elif isinstance(act, Close):
        if act.kill:
            life.killed = True
            serving.cancel()
        else:
            engine.close()
    elif isinstance(act, Pin):
        prompt = next((each.prompt for each in life.scenario.visits if each.key == act.key), [])
        keys = keys_of(engine.scheduler.state.allocator, prompt, "default")
        with suppress(UserError):  # no room for as many
            engine.pin(keys, act.on)
    elif isinstance(act, Reset):
        engine.post(ResetCache("test"))
    elif isinstance(act, Hold):
        engine.post(Pause(True, "test"))
        await anyio.sleep(act.for_ns / NS_PER_S)
        engine.post(Pause(False, "test"))
