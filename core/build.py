"""Puts the parts together: the one place where concrete plugins are made into a scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import msgspec

import stepwell
from stepwell.core.config import Config
from stepwell.core.config_admin import AdminConfig, TelemetryConfig
from stepwell.core.config_gateway import GatewayConfig
from stepwell.core.errors import UserError
from stepwell.core.journal import Header
from stepwell.core.limits import ClassLimits, SchedulerLimits, TenantLimits
from stepwell.core.protocols import Backend, SchedulerPolicy
from stepwell.core.registry import (
    check_servable,
    make,
    make_allocator,
    make_cost_model,
    make_policy,
    whole_options,
)
from stepwell.core.scheduler import Scheduler
from stepwell.core.shadow import Beside, Shadow


def limits_of(config: Config) -> SchedulerLimits:
    """The core's limits, from the configuration tree."""
    scheduler = config.scheduler
    return SchedulerLimits(
        token_budget=scheduler.token_budget,
        running_limit=scheduler.running_limit,
        depth=scheduler.depth,
        max_waiting=scheduler.max_waiting,
        max_waiting_tokens=scheduler.max_waiting_tokens,
        max_context=scheduler.max_context,
        max_preemptions=scheduler.max_preemptions,
        max_failures=scheduler.max_failures,
        seed=scheduler.seed,
        classes=tuple(
            ClassLimits(
                each.name,
                each.rank,
                each.queue_share,
                each.ttft_ns,
                each.tpot_ns,
                each.aging_ns,
                each.budget_share,
            )
            for each in config.classes
        ),
        tenants=tuple(TenantLimits(each.name, each.weight) for each in config.tenants),
    )


def build_scheduler(
    config: Config, *, base: Path | None = None, honour_repeats: bool = True, shadow: Shadow | None = None
) -> Scheduler:
    """A fresh scheduler with the policy and allocator that ``config`` names.

    ``base`` is the folder that plugin files are looked for in; ``shadow`` (see ``make_shadow``) is asked beside every
    policy that decides.  Raises ``UserError`` for an unknown plugin or option.
    """
    own = config.scheduler.options
    # Code is loaded by path because the configuration says so, at the start: never because an event does.  A name
    # that the configuration has, of the policy or of a part of it, may come back in an event.
    trusted = [config.scheduler.policy, *(value for value in own.values() if isinstance(value, str))]

    def policy(name: str, options: dict[str, object]) -> SchedulerPolicy:
        made = make_policy(name, options, base=base, registered_only=True, trusted=trusted)
        return made if shadow is None else Beside(made, shadow)

    scheduler = Scheduler(
        limits_of(config),
        make_allocator(config.memory, base=base),
        policy,
        config.scheduler.policy,
        dict(config.scheduler.options),
        honour_repeats=honour_repeats,
    )
    if shadow is not None:
        shadow.state = scheduler.state
    return scheduler


def make_shadow(
    config: Config,
    *,
    base: Path | None = None,
    clock: Callable[[], int] | None = None,
    tell: Callable[[str], None] = lambda why: None,
) -> Shadow | None:
    """The policy that ``config.scheduler.shadow`` names, to be asked beside the live one; None if it names none.

    With a ``clock`` (ns), as while serving, its time is bounded, and what knows the future is refused.
    """
    scheduler = config.scheduler
    name, given = scheduler.shadow, scheduler.shadow_options
    if not name:
        return None
    try:
        policy = make_policy(name, given, base=base)
        if clock is not None:
            check_servable(policy)
        options = whole_options("policies", name, given, base=base)
    except UserError as error:
        field = error.field.replace("scheduler.policy", "scheduler.shadow")
        field = field.replace("scheduler.options", "scheduler.shadow_options")
        raise UserError(error.message, field=field) from error
    return Shadow(policy, name, options, share=scheduler.shadow_share, clock=clock, tell=tell)


ECHO = "echo"
"""The model that needs nothing: it says the prompt again."""

COSTMODEL = "costmodel"
"""The model that is not there: it takes the time that ``[cost]`` says of each step."""


def build_backend(config: Config) -> Backend:
    """The backend of ``config.model``, with its model loaded.  ``make_place`` says where it executes.

    Raises ``UserError`` for a model that cannot be loaded, or does not fit in memory with its pages.
    """
    model = config.model
    if model.path == ECHO:
        return cast(Backend, make("backends", ECHO, cost=make_cost_model(config.cost)))
    if model.path == COSTMODEL:
        return cast(Backend, make("backends", COSTMODEL, model.options, cost=make_cost_model(config.cost)))
    options = {key: getattr(model, key) for key in ("path", "dtype", "threads", "deterministic")}
    for key in sorted(options.keys() & model.options):
        raise UserError(f"is model.{key}", field=f"model.options.{key}")
    return make_backend("torch", options | dict(model.options), config)


def make_backend(name: str, options: Mapping[str, object], config: Config) -> Backend:
    """A registered backend that loads a model, with the pool and the steps that ``config`` speaks of."""
    memory, scheduler = config.memory, config.scheduler
    made = make(
        "backends",
        name,
        options,
        pages=memory.pages,
        page_size=memory.page_size,
        host_pages=memory.host_pages,
        token_budget=scheduler.token_budget,
        running_limit=scheduler.running_limit,
    )
    return cast(Backend, made)


def journal_header(config: Config, scheduler: Scheduler, shell: str) -> Header:
    """The first line of a journal of ``scheduler``; ``config`` is complete, as its digest identifies the run.

    Who was let in, and who looked on, decided nothing: keys and tokens are no part of it, though only their digests are
    known.
    """
    config = msgspec.structs.replace(
        config, keys=(), gateway=GatewayConfig(), admin=AdminConfig(), telemetry=TelemetryConfig()
    )
    return Header(
        version=stepwell.__version__,
        shell=shell,
        digest=config.digest,
        policy=scheduler.policy_name,
        options=dict(scheduler.policy_options),
        seed=config.scheduler.seed,
        level=config.journal.level,
        config=msgspec.to_builtins(config),
    )
