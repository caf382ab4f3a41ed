"""Plays requests under a registered policy, on a device of round numbers (see ``helpers.runs.ROUND``) or a real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepwell.core import registry
from stepwell.core.limits import SchedulerLimits
from stepwell.sim.cost.linear_options import LinearOptions
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.runs import ROUND, Pool, build, simulate
from stepwell.tests.helpers.timeline import Timeline

ROOMY = Pool(256, 16, 256)
ONE_SEAT = SchedulerLimits(running_limit=1)
ORACLE: dict[str, object] = {"predictor": "oracle"}


def play(
    name: str,
    requests: Sequence[TraceRequest],
    options: dict[str, object] | None = None,
    *,
    limits: SchedulerLimits = ONE_SEAT,
    pool: Pool = ROOMY,
    cost: LinearOptions = ROUND,
) -> Timeline:
    """Run to the end; an oracle is told the truth."""
    policy: Any = registry.make_policy(name, options)
    predictor: Any = getattr(policy, "predictor", None)
    if hasattr(predictor, "reveal"):
        predictor.reveal({id: each.output_tokens for id, each in enumerate(requests, 1)})
    return simulate(build(policy, pool=pool, limits=limits), requests, cost=cost)


def order(run: Timeline) -> list[int]:
    """Requests in the order of their first admission."""
    return sorted(run.stories, key=lambda id: run.stories[id].admissions[0])


def mean_end_ns(run: Timeline) -> float:
    """Mean time from arrival to end."""
    return sum(it.end_ns - it.arrival_ns for it in run.stories.values()) / len(run.stories)
