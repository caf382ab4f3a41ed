"""The device: the echo backend, struck by faults; on the loop, or as a worker that dies and is started again.

Everything above it is production code, ``core.placement_process`` included: a worker here stands where there would be
an operating system's process, and what it is told and what it says goes through the encoding of the real one.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from stepwell.core.config import Config
from stepwell.core.execution import BackendInfo, StepResult
from stepwell.core.instructions import Launch
from stepwell.core.placement import Execution, StepBatch
from stepwell.core.placement_process import MAX_DEATHS, WorkerDied
from stepwell.core.types import NS_PER_S
from stepwell.core.worker import ANSWER, ORDERED, Answer, Broken, Done, framed
from stepwell.sim import backend as echo
from stepwell.sim.cost.linear import Linear
from stepwell.tests.dst.scenario import STEP, Fault, Lost, OutOfMemory, Raises, Scenario, Slow

DYING_NS = 3_000_000
"""Until a death in the middle of a step is noticed."""
STARTING_S = 0.02
"""Until another worker is up, or is not."""


class Script:
    """What is to happen on the device, whichever worker it is; ``lengths`` of answers by request."""

    def __init__(self, scenario: Scenario) -> None:
        self.instant = scenario.house.instant
        self.lengths: dict[int, int] = {}
        self.struck: list[Fault] = []
        """Faults that came to pass."""
        self.blamed: list[int] = []
        self.deaths = 0
        """Of workers in a row, without one finished step."""
        self.given_up = False
        """As many as the engine puts up with, and one more."""
        self._faults = sorted(scenario.faults, key=lambda each: each.step)

    def died(self) -> None:
        self.deaths += 1
        self.given_up |= self.deaths > MAX_DEATHS

    def due(self, step: int) -> Fault | None:
        """The fault that strikes this step, if one does."""
        if not self._faults or self._faults[0].step > step:
            return None
        fault = self._faults.pop(0)
        self.struck.append(fault)
        return fault


class Device:
    """A backend for one worker's life.  Implements ``core.execution.Backend`` by an ``EchoBackend``."""

    name = "device"
    info = BackendInfo(model="echo")

    def __init__(self, script: Script, *, remote: bool) -> None:
        self.script = script
        self.remote = remote
        self.echo = echo.EchoBackend(cost=Linear(STEP), lengths=script.lengths, faults=self._fault)
        self.admit = self.echo.admit
        self.closed = 0
        self.lost: Lost | None = None
        """This worker is to die."""
        self._due: Fault | None = None
        self._launch = Launch(0)

    def release(self, request: int) -> None:
        self.echo.release(request)

    def close(self) -> None:
        self.closed += 1

    def execute(self, batch: Launch) -> StepResult:
        due = self._due = self.script.due(batch.step)
        if isinstance(due, Raises):
            raise RuntimeError("the driver is gone")
        self._launch = batch
        result = self.echo.execute(batch)
        if self.script.instant:
            result.elapsed_ns = result.copy_ns = 0
        if isinstance(due, Slow):
            result.elapsed_ns += due.by_ns
        return result

    def _fault(self, step: int) -> echo.Fault | None:
        due = self._due
        if isinstance(due, OutOfMemory):
            inside = [row[0] for row in self._launch.slices] + self._launch.joined
            blamed = [inside[due.blamed % len(inside)]] if inside and due.blamed >= 0 else []
            self.script.blamed += blamed
            return echo.Fault(tuple(blamed), reason="out of memory")
        if isinstance(due, Lost):
            self.lost = due
            if self.remote and due.when == "after":
                return None
            return echo.Fault(device_lost=True, reason="device lost")
        return None


class Worker:
    """Implements ``core.placement_process.Worker``: a device behind the wire, which dies with it."""

    pid = 0

    def __init__(self, script: Script, stillborn: list[int]) -> None:
        self.device = Device(script, remote=True)
        self._execution = Execution(self.device)
        self._stillborn = stillborn
        """How many further workers do not come up; shared by all of them."""
        self._answers: list[bytes] = []
        self._dies_ns = -1
        self._news = anyio.Event()

    def opened(self) -> BackendInfo:
        return self.device.info

    async def ready(self) -> BackendInfo:
        await anyio.sleep(STARTING_S)
        if self._stillborn[0]:
            self._stillborn[0] -= 1
            self.end()
            self.device.script.died()
            raise WorkerDied("ended with status 1")
        return self.device.info

    async def tell(self, value: object) -> None:
        """Executes at once; the answer is read when the engine comes for it."""
        if self._dies_ns >= 0:
            return
        batch = ORDERED.decode(framed(value)[4:])
        assert isinstance(batch, StepBatch), "no grammars are prepared here"
        answer: Answer | None = None
        try:
            result = self._execution.carry_out(batch)
        except RuntimeError as error:
            answer = Broken(str(error))
        else:
            answer = None if result is None else Done(result)
        lost, self.device.lost = self.device.lost, None
        if lost is not None:
            self._stillborn[0] = lost.stillborn
            self._dies_ns = DYING_NS if lost.when == "during" else 0
        if answer is not None and (lost is None or lost.when == "after"):
            self._answers.append(framed(answer)[4:])
        self._news.set()

    async def answer(self) -> Answer:
        while not self._answers:
            if self._dies_ns >= 0:
                await anyio.sleep(self._dies_ns / NS_PER_S)
                self.end()
                self.device.script.died()
                raise WorkerDied("was killed by signal 9")
            self._news = anyio.Event()
            await self._news.wait()
        answer = ANSWER.decode(self._answers.pop(0))
        if isinstance(answer, Done) and not answer.result.failed:
            self.device.script.deaths = 0
        return answer

    def end(self) -> None:
        self.device.close()


def starter(script: Script) -> tuple[list[Worker], Callable[[Config], Worker]]:
    """Starts workers (for ``Process``), and the list of all that were started."""
    workers: list[Worker] = []
    stillborn = [0]

    def start(config: Config) -> Worker:
        workers.append(Worker(script, stillborn))
        return workers[-1]

    return workers, start
