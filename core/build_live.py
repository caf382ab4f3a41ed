"""The scheduler of a server: its policy's shadow, if it has one, is bounded by this machine's clock."""

from __future__ import annotations

import time

import structlog

from stepwell.core.build import build_scheduler, make_shadow
from stepwell.core.config import Config
from stepwell.core.scheduler import Scheduler

log = structlog.get_logger("stepwell.shadow")


def serving_scheduler(config: Config) -> Scheduler:
    """As ``build_scheduler``; raises ``UserError`` also for a shadow that knows the future."""

    def tell(why: str) -> None:
        log.error("shadow policy switched off, the live one goes on", shadow=config.scheduler.shadow, why=why)

    return build_scheduler(config, shadow=make_shadow(config, clock=time.perf_counter_ns, tell=tell))
