"""What ``advise`` tries: every registered policy as it comes, and a few options of those that have one that matters.

A policy that is made with a step-time estimate gets the model of the recorded machine for it.  Nothing that knows the
future is ever tried: an oracle exists in simulations only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepwell.core.config import Config, CostConfig
from stepwell.core.errors import UserError
from stepwell.core.registry import load, make_options, names, whole_options
from stepwell.sim.compare.records import Contender

VARIANTS: Mapping[str, Sequence[Mapping[str, object]]] = {
    "chat-batch": ({"spare": 0.25}, {"aging_s": 300.0}),
    "conserve": ({"step_ms": 50.0}, {"step_ms": 100.0}),
    "edf": ({"preempt": "recompute"},),
    "mlfq": ({"quantum": 128},),
    "plas": ({"quantum": 8192},),
    "priority": ({"aging_s": 300.0},),
    "sarathi": ({"step_ms": 25.0}, {"step_ms": 100.0}),
    "sjf": ({"predictor": "constant"},),
    "srpt": ({"predictor": "constant"},),
    "vllm": ({"order": "priority"},),
}
"""Options tried besides the defaults, by policy.  docs/what_if.md has the same table."""

_FIELD = "policies"


def catalogue(config: Config, estimate: CostConfig, policies: Sequence[str] = ()) -> list[Contender]:
    """What runs now, under ``config``, and then everything else; only ``policies`` if any are named.

    Raises ``UserError`` for a named policy that is unknown or knows the future.
    """
    now = contender_of(config)
    found, seen = [now], [_identity(now)]
    for name in policies or names("policies"):
        for options in ({}, *VARIANTS.get(name, ())):
            if knows_the_future(name, options):
                if policies:
                    raise UserError(f"{name} knows the future, which nobody does while serving", field=_FIELD)
                continue
            whole = {**_estimates(name, estimate), **options}
            words = ", ".join(f"{key}={value}" for key, value in options.items())
            each = Contender(f"{name} {words}".strip(), name, now.allocator, whole, now.allocator_options)
            if _identity(each) not in seen:
                seen.append(_identity(each))
                found.append(each)
    return found


def contender_of(config: Config) -> Contender:
    """What a configuration decides by."""
    scheduler, memory = config.scheduler, config.memory
    label = f"{scheduler.policy} (now)"
    return Contender(label, scheduler.policy, memory.allocator, dict(scheduler.options), dict(memory.options))


def knows_the_future(name: str, options: Mapping[str, object]) -> bool:
    """Whether the policy, made with these options, has a part that is for simulations only."""
    plugin = load("policies", name)
    made = make_options(plugin, options, field=_FIELD)
    return any(
        group == "predictors" and getattr(load(group, getattr(made, part)), "simulation_only", False)
        for part, group in getattr(plugin, "parts", {}).items()
    )


def allocators(config: Config) -> list[str]:
    """Other allocators that reuse prefixes."""
    return [
        name
        for name in names("allocators")
        if name != config.memory.allocator and getattr(load("allocators", name), "reuses_prefixes", False)
    ]


def _estimates(name: str, estimate: CostConfig) -> dict[str, object]:
    """The options that make the policy estimate steps by ``estimate``, if it estimates any."""
    parts: Mapping[str, str] = getattr(load("policies", name), "parts", {})
    found: dict[str, object] = {}
    for part, group in parts.items():
        if group == "cost_models":
            found |= {part: estimate.model, f"{part}_options": dict(estimate.options)}
    return found


def _identity(it: Contender) -> tuple[str, dict[str, object], str]:
    """Equal for two that decide alike."""
    return it.policy, whole_options("policies", it.policy, it.options), it.allocator
