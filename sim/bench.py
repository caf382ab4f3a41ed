"""Measures the scheduler and the simulator on this machine, as numbers with units.

Every line that comes out is a flat table.  ``machine`` lines say how fast plain Python runs here, so that figures of
different machines can be compared, and every line whether the core is compiled; times of the scheduler are medians by
the wall clock, speeds of the simulator go by processor time of its loop.
"""

from __future__ import annotations

import platform
import resource
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median, quantiles

import msgspec

from stepwell.core.build import build_scheduler, make_shadow
from stepwell.core.build_kind import build_kind
from stepwell.core.config import Config, JournalConfig, MemoryConfig, SchedulerConfig, validate
from stepwell.core.errors import UserError
from stepwell.core.events import Event, StepDone, Submitted
from stepwell.core.instructions import Admitted, Instruction, Launch
from stepwell.core.scheduler import Scheduler
from stepwell.core.types import RequestId
from stepwell.sim.run import Result, simulate
from stepwell.sim.workload.generate import common_workload
from stepwell.sim.workload.request import Workload
from stepwell.sim.workload.trace import read_trace
from stepwell.sim.workload.transform import scale_rate

Line = dict[str, object]

RUNNING = (64, 256, 1024)
WAITING = (100, 10_000, 100_000)
STEPS = 2_000
"""Timed steps a figure; the first tenth as many more warm up."""

REQUESTS = 10_000
"""Simulated to say how fast a policy is."""

LOADS = (0.9, 0.3)
REPEATS = 3
SET_UP = 500
"""Steps that it may take until the most that run at once have all been admitted, while the first must not end."""

PATIENCE = 20
"""Steps that may pass for each that is timed."""

ENOUGH_S = 10.0
"""A figure that has taken so long is not repeated once more."""

MOONCAKE = "mooncake_fast25_conversation.jsonl"
MOONCAKE_SATURATED = 1.11
"""Requests/s that ``fcfs`` completes of the whole trace in the default pool when all arrive at once.  Its longest
prompts almost fill that pool alone, so a smaller one would refuse some."""

_PAGE = 16
_STEP_NS = 10_000_000


def machine() -> Line:
    """How fast a fixed loop of plain Python runs: the yardstick for everything else."""
    rounds = 300_000
    best_ns = min(_spin(rounds) for _ in range(5))
    return {
        "bench": "machine",
        "build": build_kind(),
        "loop_ns_per_iteration": round(best_ns / rounds, 2),
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
    }


def _spin(rounds: int) -> int:
    value = 0
    start_ns = time.process_time_ns()
    for index in range(rounds):
        value = (value * 31 + index) & 0xFFFF
    return time.process_time_ns() - start_ns


def rss_mb() -> float:
    """The most memory that this process has had so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10), 1)


# ------------------------------------------------------------------------------------------------ scheduler


def bench_scheduler(
    policies: Iterable[str],
    *,
    steps: int = STEPS,
    allocator: str = "paged",
    requests: int = REQUESTS,
    shadow: str = "",
) -> Iterator[Line]:
    """What each policy's steps cost, by requests running and waiting, and how fast it is simulated.

    The last line of a policy says how much dearer a step with changes is for the most waiting than for the fewest.
    ``shadow`` is asked in every step that is planned, and its time measured, as while serving.
    """
    yield machine()
    for policy in policies:
        line: Line = {"bench": "scheduler", "build": build_kind(), "policy": policy, "allocator": allocator}
        if shadow:
            line["shadow"] = shadow
        seen: list[int] = []
        for running in RUNNING:
            asked = Drive(policy, running, steps, honour_repeats=False, allocator=allocator, shadow=shadow).steady(
                steps
            )
            drive = Drive(policy, running, steps, allocator=allocator, shadow=shadow)
            if drive.running in seen:
                continue  # the policy has a limit of its own (static batching)
            seen.append(drive.running)
            steady = _figures("steady", drive, drive.steady(steps))
            yield line | {"waiting": 0} | steady | {"steady_asked_p50_us": p50(asked), "rss_mb": rss_mb()}
        changes_us: list[float] = []
        for waiting in WAITING:
            drive = Drive(policy, 256, 2 * steps, waiting=waiting, allocator=allocator, shadow=shadow)
            steady = _figures("steady", drive, drive.steady(steps))
            change = drive.changing(steps)
            changes_us.append(p50(change))
            yield line | {"waiting": waiting} | steady | _figures("change", drive, change) | {"rss_mb": rss_mb()}
        speed = _speed(simulated_config(policy, allocator), common_workload(requests, LOADS[0]), None, REPEATS)
        growth = round(changes_us[-1] / changes_us[0], 2)
        yield line | {"growth": growth, "growth_from": WAITING[0], "growth_to": WAITING[-1]} | speed


def _figures(what: str, drive: Drive, times_us: list[float]) -> Line:
    """None of a kind of step that there was none of."""
    figures = {f"{what}_p50_us": p50(times_us), f"{what}_p99_us": p99(times_us)} if len(times_us) > 1 else {}
    return {"running": drive.running, **figures, "steps": len(times_us)}


class Drive:
    """A scheduler with real page tables, brought to where everybody decodes.

    Prompts have keys if the ``allocator`` asks for them, and no two are alike.
    """

    def __init__(
        self,
        policy: str,
        running: int,
        steps: int,
        *,
        waiting: int = 0,
        honour_repeats: bool = True,
        allocator: str = "paged",
        shadow: str = "",
    ) -> None:
        pages = running * ((SET_UP + 550 + steps * 2) // _PAGE)
        config = validate(
            Config(
                scheduler=SchedulerConfig(
                    policy=policy, running_limit=running, max_waiting=1 << 20, shadow=shadow, shadow_share=1.0
                ),
                memory=MemoryConfig(allocator=allocator, pages=pages, page_size=_PAGE, host_pages=pages),
            )
        )
        beside = make_shadow(config, clock=time.perf_counter_ns)
        self.scheduler: Scheduler = build_scheduler(config, honour_repeats=honour_repeats, shadow=beside)
        made = self.scheduler.state.allocator
        self._key_tokens = made.key_tokens if made.reuses_prefixes else 0
        # More than anybody comes to, and little enough that all fit who reserve it at once.
        self._most = SET_UP + steps * 2
        self._now_ns = 0
        self._next: RequestId = 1
        self._step = 0
        self._decodes = False
        self._quiet = False
        """The last launch does nothing but decode."""
        self._admitted: deque[RequestId] = deque()
        self._submit(running)
        state = self.scheduler.state
        quiet = 0
        while quiet < 4:
            admitted = len(self._admitted)
            self._done([])
            busy = state.loose or len(self._admitted) > admitted
            quiet = 0 if busy else quiet + 1
        self.running = len(state.group.members)
        self._submit(waiting)

    def steady(self, steps: int) -> list[float]:
        """Microseconds of each of ``steps`` steps in which nothing but decoding happens.

        A policy under which those who run give way to new ones has such steps only once everybody has had a turn, so
        others are let pass, ``PATIENCE`` times as many at most.
        """
        times: list[float] = []
        left = PATIENCE * steps
        while len(times) < steps // 10 + steps and left > 0:
            left -= 1
            took_us = self._done([])
            if self._quiet:
                times.append(took_us)
        return times[len(times) // 11 :]

    def changing(self, steps: int) -> list[float]:
        """Microseconds of an arrival and of a step's end with one request ending and another admitted, together."""
        times = []
        for _ in range(steps // 10 + steps):
            arrival_us = self._handle([self._arrival()])
            times.append(arrival_us + self._done(self._oldest()))
        return times[-steps:]

    def _oldest(self) -> list[RequestId]:
        """Who was admitted first of those in the step, which under some policies is not who came first; if any is."""
        decoding = self.scheduler.state.group.members if self._decodes else {}
        oldest = [id for id in self._admitted if id in decoding][:1]
        for id in oldest:
            self._admitted.remove(id)
        return oldest

    def _submit(self, count: int) -> None:
        for _ in range(count):
            self._handle([self._arrival()])

    def _arrival(self) -> Submitted:
        id = self._next
        self._next += 1
        tokens = 480 + id * 7 % 41
        keys = [(id << 32) + place for place in range(tokens // self._key_tokens)] if self._key_tokens else []
        return Submitted(id, tokens, self._most, keys=keys)

    def _done(self, ended: list[RequestId]) -> float:
        self._now_ns += _STEP_NS
        return self._handle([StepDone(self._step, ended, _STEP_NS)])

    def _handle(self, events: list[Event]) -> float:
        now_ns = self._now_ns
        handle = self.scheduler.handle
        start_ns = time.perf_counter_ns()
        out = handle(now_ns, events)
        took_ns = time.perf_counter_ns() - start_ns
        self._follow(out)
        return took_ns / 1000

    def _follow(self, out: list[Instruction]) -> None:
        for item in out:
            if isinstance(item, Launch):
                self._step, self._decodes = item.step, item.decode
                self._quiet = item.repeats()
            elif isinstance(item, Admitted):
                self._admitted.append(item.request)


def p50(times_us: list[float]) -> float:
    return round(median(times_us), 2)


def p99(times_us: list[float]) -> float:
    return round(quantiles(times_us, n=100)[98], 2)


# ------------------------------------------------------------------------------------------------ simulator


def bench_sim(
    policy: str = "fcfs", *, requests: int = 100_000, repeats: int = REPEATS, traces: Path | None = None
) -> Iterator[Line]:
    """Speed of the simulator with per-request metrics, with and without a journal."""
    if requests < 2 or repeats < 1:
        raise UserError(f"must be at least 2 requests and 1 repeat, not {requests} and {repeats}", field="requests")
    yield machine()
    config = simulated_config(policy, "paged")
    line: Line = {"bench": "sim", "build": build_kind(), "policy": policy}
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        journal = Path(folder) / "bench.jsonl"
        for load in LOADS:
            workload = common_workload(requests, load)
            for path in (None, journal):
                yield {**line, "workload": "common", "load": load} | _speed(config, workload, path, repeats)
        file = traces / MOONCAKE if traces is not None else None
        if file is None or not file.is_file():
            yield {**line, "workload": MOONCAKE, "skipped": f"not found in {traces or 'any folder given'}"}
            return
        whole = read_trace(file, debucket=True)
        workload = scale_rate(whole, 0.9 * MOONCAKE_SATURATED / whole.profile().rate_per_s)
        for path in (None, journal):
            yield {**line, "workload": MOONCAKE, "load": 0.9} | _speed(config, workload, path, repeats)


def simulated_config(policy: str, allocator: str) -> Config:
    """The reference machine, with a waiting line that turns nobody away."""
    return validate(
        Config(
            scheduler=SchedulerConfig(policy=policy, max_waiting=1 << 30, max_waiting_tokens=1 << 36),
            memory=MemoryConfig(allocator=allocator),
            journal=JournalConfig(keep_segments=0),
        )
    )


def _speed(config: Config, workload: Workload, journal: Path | None, repeats: int) -> Line:
    results: list[Result] = []
    speeds: list[float] = []
    start_s = time.monotonic()
    while len(speeds) < repeats and not (speeds and time.monotonic() - start_s > ENOUGH_S):
        result = simulate(config, workload=workload, journal=journal)
        speeds.append(len(workload) / max(result.cpu_s, 1e-9))
        results = [result]
    summary = results[0].summary
    middle = median(speeds)
    return {
        "journal": journal is not None,
        "requests": len(workload),
        "requests_per_s": round(middle),
        "requests_per_s_best": round(max(speeds)),
        "steps_per_s": round(middle * summary.steps / len(workload)),
        "steps": summary.steps,
        "preemptions": summary.preemptions_swap + summary.preemptions_recompute,
        "journal_bytes_per_request": round(_size(journal) / len(workload)) if journal is not None else 0,
        "repeats": len(speeds),
        "rss_mb": rss_mb(),
    }


def _size(journal: Path) -> int:
    return sum(each.stat().st_size for each in journal.parent.glob(f"{journal.stem}*{journal.suffix}"))


def as_json(line: Line) -> str:
    """A line as ``--json`` prints it."""
    return msgspec.json.encode(line).decode()
