"""Runs the batches of a store: beneath everything else, a bounded number of lines at once, across restarts.

A batch is one task.  It looks at its file, waits for its turn among the batches of its tenant, and hands its lines to
the endpoint, in turns with those of other tenants.  A line's result is recorded as soon as it is there, and what is
recorded is never run again; all else is known to this process only, and found again from the store at the next start.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import TypeVar

import anyio
import structlog
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskGroup, TaskStatus

from stepwell.core.errors import CapacityError, describe
from stepwell.core.metrics_batches import BatchTally
from stepwell.transports.batches.allowance import Allowance
from stepwell.transports.batches.asking import Again, Asking, Over, without_answer
from stepwell.transports.batches.job import Job
from stepwell.transports.batches.lines import Checker, Line, slices
from stepwell.transports.service import Service
from stepwell.transports.stopping import Stopping
from stepwell.transports.store import batches, files
from stepwell.transports.store.batches import BatchRow, Result
from stepwell.transports.store.store import Store
from stepwell.transports.store.worker import Work

log = structlog.get_logger("stepwell.batches")

T = TypeVar("T")

LOOK_S = 0.25
SWEEP_S = 30.0
LEAST_PATIENCE_S, MOST_PATIENCE_S = 0.1, 10.0
"""Between two tries of what there was no room for, in the engine or in the store; doubled each time."""
FILLED = 500
"""Lines without an answer that are recorded at once."""

WHY = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed, or not to its end: the batch was cancelled."),
    "no_room": ("storage_quota_exceeded", "There is no room for an answer: the files of this tenant take too much."),
}


class Runner:
    """``run`` must be running; ``begin`` and ``cancel`` tell it what clients did."""

    def __init__(self, service: Service, store: Store, ask: Asking) -> None:
        self._ended = {"completed": 0, "failed": 0}
        self._service = service
        self._store = store
        self._ask = ask
        self._allowance = Allowance(store.limits.lines_in_flight)
        self._most_line = int(service.limits.body_mib * (1 << 20))
        self._jobs: dict[int, Job] = {}
        self._turns: dict[str, anyio.Lock] = {}
        self._checking = anyio.Lock()
        self._pausing = Stopping()
        """No line begins any more."""
        self._tasks: TaskGroup | None = None

    @property
    def endpoints(self) -> tuple[str, ...]:
        """What a batch may be of."""
        return tuple(self._ask.endpoints)

    def tally(self) -> BatchTally:
        """For ``/metrics``."""
        running = sum(job.running for job in self._jobs.values())
        left = sum(job.left for job in self._jobs.values())
        return BatchTally({"waiting": left - running, "running": running}, self._ended, self._store.file_bytes)

    # ------------------------------------------------------------------------------------------- life

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Go on with what is unfinished, and take what comes, until the server stops."""
        try:
            await self._certain(files.remove_unfinished)
            rows = await self._store.database.read(batches.unfinished)
            async with anyio.create_task_group() as self._tasks:
                for row in rows:
                    self.begin(row)
                task_status.started()
                await self._look()
        except Over:
            pass
        finally:
            self._tasks = None

    def begin(self, row: BatchRow) -> None:
        """There is a batch to run.  If nothing is run any more, the next start finds it."""
        if self._tasks is not None and not self._service.draining:
            job = self._jobs[row.number] = Job(row)
            self._tasks.start_soon(self._serve, job)

    def cancel(self, number: int) -> None:
        """A client wants it to end; the store says so already."""
        job = self._jobs.get(number)
        if job is not None:
            job.end("cancelled")

    async def _look(self) -> None:
        """What time brings: windows end, files grow old, the server drains."""
        service, store, swept = self._service, self._store, -SWEEP_S
        while not service.stopping.is_set():
            if service.draining:
                self._pausing.set()
            now = store.now()
            for job in list(self._jobs.values()):
                if now >= job.row.expires_at:
                    job.end("expired")
            if anyio.current_time() - swept >= SWEEP_S:
                swept = anyio.current_time()
                await self._sweep(now)
            with anyio.move_on_after(LOOK_S):
                await service.stopping.wait()
        self._pausing.set()

    async def _sweep(self, now: int) -> None:
        database, store = self._store.database, self._store
        try:
            while await database.write_at_last(lambda db: batches.sweep(db, now, store.file_s)):
                pass
            store.file_bytes = await database.read(files.total_bytes)
        except CapacityError as error:
            log.error("old files stay", reason=str(error))

    # ------------------------------------------------------------------------------------------- one batch

    async def _serve(self, job: Job) -> None:
        number = job.row.number
        try:
            if await self._checked(job):
                await self._feed(job)
                if job.ending or not job.interrupted:
                    await self._finish(job)
        except Over:
            pass
        except Exception as error:  # a bug: it goes on at the next start, and everybody else now
            log.error("a batch stopped until the next start", batch=job.row.id, reason=describe(error))
        finally:
            del self._jobs[number]

    async def _checked(self, job: Job) -> bool:
        """Look at the file, if nobody did; whether there may be something to run."""
        row, store = job.row, self._store
        if row.status != "validating":
            return True
        checker = Checker(row.endpoint, store.limits.file_lines)
        with job.unless_ended(), self._until_paused(job):
            async with self._checking, aclosing(await self._slices(row)) as found:
                async for lines in found:
                    checker.look(lines)
                    if checker.done:
                        break
        if job.ending or job.interrupted:
            return bool(job.ending)
        errors, now, model = checker.end(), store.now(), self._service.model.name
        if errors:
            await self._certain(lambda db: batches.fail(db, row.number, errors, now))
            return False
        job.row = await self._certain(lambda db: batches.start(db, row.number, checker.lines, model, now))
        if job.row.status == "cancelling":  # by a client who knew of it before there was a job to tell
            job.end("cancelled")
        return True

    async def _feed(self, job: Job) -> None:
        """Run its lines, until each has a result, it ends early, or the server drains."""
        number = job.row.number
        job.recorded(await self._store.database.read(lambda db: batches.recorded(db, number)))
        with job.unless_ended():
            async with anyio.create_task_group() as lines, self._turn(job.row.tenant):
                with self._until_paused(job):
                    await self._begin_lines(job, lines)

    async def _begin_lines(self, job: Job, tasks: TaskGroup) -> None:
        async with aclosing(await self._slices(job.row)) as found:
            async for lines in found:
                new = [line for line in lines if not job.is_done(line.place)]
                if new and await self._over_quota(job.row.tenant):
                    await self._record(job, [without_answer(line, *WHY["no_room"]) for line in new])
                    continue
                for line in new:
                    await job.clear()
                    await self._allowance.take()
                    job.running += 1
                    tasks.start_soon(self._line, job, line)

    async def _line(self, job: Job, line: Line) -> None:
        """Run it; it has a place in flight."""
        row, held, patience_s = job.row, True, LEAST_PATIENCE_S
        try:
            while True:
                try:
                    result = await self._ask(line, row.endpoint, row.tenant)
                    self._allowance.answered()
                    await self._record(job, [result])
                    return
                except Again as again:
                    if not again.wait_s:
                        self._allowance.refused(self._service.clock.now_ns())
                    self._allowance.give_back()
                    held = False
                    with job.refusal():
                        await anyio.sleep(again.wait_s or patience_s)
                        await self._allowance.take()
                        held = True
                    patience_s = min(2 * patience_s, MOST_PATIENCE_S)
        except Over:
            job.interrupted = True
        finally:
            job.running -= 1
            if held:
                self._allowance.give_back()

    async def _finish(self, job: Job) -> None:
        """Each line has a result, or gets one that says why it has none."""
        row, store = job.row, self._store
        if job.ending and row.total:
            await self._fill(job)
        now = store.now()
        if not job.ending:
            await self._certain(lambda db: batches.finalize(db, row.number, now))
        status = job.ending or "completed"
        await self._certain(lambda db: batches.finish(db, row.number, status, now, store.file_s))

    async def _fill(self, job: Job) -> None:
        number, why = job.row.number, WHY[job.ending]
        job.recorded(await self._store.database.read(lambda db: batches.recorded(db, number)))
        async with aclosing(await self._slices(job.row)) as found:
            async for lines in found:
                new = [line for line in lines if not job.is_done(line.place)]
                for start in range(0, len(new), FILLED):
                    await self._record(job, [without_answer(line, *why) for line in new[start : start + FILLED]])

    # ------------------------------------------------------------------------------------------- the store

    async def _slices(self, row: BatchRow) -> AsyncGenerator[list[Line]]:
        file = await self._store.database.read(lambda db: files.find(db, row.tenant, row.input_file_id))
        return slices(self._store.database, file, self._most_line)

    async def _over_quota(self, tenant: str) -> bool:
        _, size = await self._store.database.read(lambda db: files.used(db, tenant))
        return size > self._store.room.tenant_bytes

    async def _record(self, job: Job, results: Sequence[Result]) -> None:
        number = job.row.number
        await self._certain(lambda db: batches.record(db, number, results), ordinary=True)
        job.left -= len(results)
        for each in results:
            self._ended["failed" if each.failed else "completed"] += 1

    async def _certain(self, work: Work[T], *, ordinary: bool = False) -> T:
        """Write, however long the store has no room.  ``ordinary``: without its reserve.  Raises ``Over``."""
        database, stopping, patience_s = self._store.database, self._service.stopping, LEAST_PATIENCE_S
        while True:
            try:
                return await (database.write(work) if ordinary else database.write_at_last(work))
            except CapacityError as error:
                if stopping.is_set():
                    raise Over from None
                log.error("batches wait for the store", reason=str(error), seconds=patience_s)
            with anyio.move_on_after(patience_s):
                await stopping.wait()
            patience_s = min(2 * patience_s, MOST_PATIENCE_S)

    @contextmanager
    def _until_paused(self, job: Job) -> Iterator[None]:
        """What is inside is given up when the server drains."""
        with anyio.CancelScope() as scope, self._pausing.ends(scope, 0.0):
            yield
        job.interrupted |= scope.cancelled_caught

    @asynccontextmanager
    async def _turn(self, tenant: str) -> AsyncIterator[None]:
        """One batch of a tenant hands in lines at a time, the oldest first."""
        lock = self._turns.setdefault(tenant, anyio.Lock())
        async with lock:
            yield
        if not lock.locked():
            self._turns.pop(tenant, None)
