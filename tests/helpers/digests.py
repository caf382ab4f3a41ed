"""Prints what this build decides, one line a run: for two builds of one source to be compared in two processes.

python -m stepwell.tests.helpers.digests
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from stepwell.core.build_kind import build_kind
from stepwell.core.config import Config, MemoryConfig, SchedulerConfig
from stepwell.core.errors import InvariantError, PolicyError
from stepwell.core.events import Event, RunDone, StepDone, StepFailed, Submitted
from stepwell.core.registry import names
from stepwell.core.request import Progress, Request
from stepwell.core.scheduler import Scheduler
from stepwell.core.types import RequestState
from stepwell.memory.quarantine import Quarantine
from stepwell.sim.run import simulate
from stepwell.sim.workload.generate import common_workload
from stepwell.tests.core.journals import RotateEvery, record
from stepwell.tests.core.shells import Case, fixed_case, live, simulated

SEEDS = 12
"""Seeds of ``fixed_case``: depth 1 to 3, steps that fail in every fourth, cancels and preemptions in all."""

BREAKS = ("unknown", "raises", "observe", "empty", "past")
SWAPPED = RequestState.SWAPPED


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def journals() -> Iterator[tuple[str, str]]:
    """Crowded houses, under every policy and allocator, in both shells, with and without jumps, and rotated."""
    for policy in names("policies"):
        for allocator in names("allocators"):
            for seed in range(SEEDS):
                case = fixed_case(seed, policy, allocator)
                run = simulated(case)
                what = f"{policy} {allocator} {seed} depth {case.scheduler['depth']}{words(run.journal)}"
                yield what, digest(run.journal)
                yield f"{what}: step by step", digest(simulated(case, jumps=False, honour_repeats=False).journal)
                yield f"{what}: live", digest(live(case).journal)
        with tempfile.TemporaryDirectory() as folder:
            record(fixed_case(3, policy, "paged"), Path(folder) / "run.jsonl", beside=[RotateEvery(15)])
            segments = sorted(Path(folder).iterdir())
            yield f"{policy}: {len(segments)} segments", digest(b"".join(each.read_bytes() for each in segments))


def words(journal: bytes) -> str:
    """What happened in it, so that a comparison of nothing shows."""
    told = ("swap", "recompute", "failed", "cancelled", "repeat")
    return "".join(f" {word}" for word in told if f'"{word}"'.encode() in journal)


def summaries() -> Iterator[tuple[str, str]]:
    """A longer run that preempts: its journal and its metrics."""
    workload = common_workload(400, 0.9)
    for policy in names("policies"):
        config = Config(scheduler=SchedulerConfig(policy=policy), memory=MemoryConfig(pages=1500, host_pages=1500))
        with tempfile.TemporaryDirectory() as folder:
            result = simulate(config, workload=workload, journal=Path(folder) / "run.jsonl")
            written = b"".join(each.read_bytes() for each in sorted(Path(folder).iterdir()))
        moved = result.summary.preemptions_swap + result.summary.preemptions_recompute
        numbers = msgspec.json.encode(result.summary) + msgspec.json.encode(list(result.metrics.requests.values()))
        yield f"{policy}: 400 requests, {moved} preemptions", digest(written) + digest(numbers)


def errors() -> Iterator[tuple[str, str]]:
    """What is raised, in its own words."""
    for how in BREAKS:
        case = replace(fixed_case(1, "stepwell.tests.core.bad_policies:Breaks", "paged"), options={"how": how})
        yield f"policy {how}", raised(partial(simulated, case))
    for what, events in IMPOSSIBLE.items():
        yield what, raised(partial(_feed, events))
    yield "time runs back", raised(lambda: _house().handle(-1, []))
    yield "quarantine runs back", raised(lambda: Quarantine[list[int]](5).step_done(4))
    request = Request(1, 8, 4, "chat", 0, "a", 0, 0, [], Progress())
    yield "transition", raised(lambda: request.move(SWAPPED, 7, "on a whim"))


IMPOSSIBLE: dict[str, list[list[Event]]] = {
    "a step nobody launched": [[StepDone(7)]],
    "a step done twice": [[Submitted(1, 8, 4)], [StepDone(1)], [StepDone(1)]],
    "a request twice": [[Submitted(1, 8, 4)], [Submitted(1, 8, 4)]],
    "a failure of no step": [[StepFailed(3)]],
    "a run that was not offered": [[Submitted(1, 8, 4)], [RunDone(9, [2, 3])]],
    "an end of a stranger": [[Submitted(1, 8, 4)], [StepDone(1, [5])]],
}


def _house() -> Scheduler:
    return Case((), memory={"pages": 8, "page_size": 4, "host_pages": 0}).build()


def _feed(turns: list[list[Event]]) -> None:
    scheduler = _house()
    for now_ns, events in enumerate(turns, 1):
        scheduler.handle(now_ns, events)


def raised(call: Callable[[], object]) -> str:
    try:
        call()
    except (PolicyError, InvariantError) as error:
        return f"{type(error).__name__}: {error} {sorted(vars(error).items())}"
    return "nothing"


def main() -> None:
    print(build_kind())
    for part in (journals, summaries, errors):
        for what, told in part():
            print(f"{what} | {told}")


if __name__ == "__main__":
    main()
