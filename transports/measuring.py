"""The metrics of a server: what the scheduler's events tell, with its limits, classes and clock."""

from __future__ import annotations

from stepwell.core.clock import Clock
from stepwell.core.config import Config
from stepwell.core.metrics import ServingMetrics
from stepwell.core.scheduler import Scheduler
from stepwell.core.shadow import shadow_of


def metrics_of(config: Config, model_name: str, scheduler: Scheduler, clock: Clock) -> ServingMetrics:
    """Of a server that has just begun."""
    metrics = ServingMetrics(
        model_name,
        config.memory.pages,
        config.memory.page_size,
        limits=scheduler.state.limits,
        policy=scheduler.policy_name,
        tenants=config.telemetry.tenant_labels,
        clock=clock.now_ns,
    )
    metrics.shadow = shadow_of(scheduler)
    return metrics
