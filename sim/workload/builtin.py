"""Workloads that need no file."""

from __future__ import annotations

from collections.abc import Callable

from stepwell.core.errors import UserError
from stepwell.sim.workload.generate import ClassMix, Synthetic, common_workload, generate
from stepwell.sim.workload.mixes import Lengths, TenantMix
from stepwell.sim.workload.rates import Arrivals
from stepwell.sim.workload.request import Workload

DEMO = Synthetic(
    name="demo",
    count=2_000,
    seed=1,
    arrivals=Arrivals(rate_per_s=29.0, kind="gamma", cv=4.0),
    classes=(
        ClassMix(name="chat", share=0.75, prompt=Lengths(280.0, 0.8, 4, 3000), output=Lengths(150.0, 0.7, 2, 1000)),
        ClassMix(name="batch", share=0.25, prompt=Lengths(700.0, 0.6, 64, 4000), output=Lengths(700.0, 0.6, 16, 2000)),
    ),
    tenants=(TenantMix("heavy", 0.6), TenantMix("medium", 0.3), TenantMix("light", 0.1)),
)
"""About a minute and a half of chat beside long batch requests.  On average the reference step time keeps up; in the
bursts it does not, so queues form, memory runs out, and policies come to differ."""


def demo() -> Workload:
    return generate(DEMO)


BUILTIN: dict[str, Callable[[], Workload]] = {"demo": demo, "common": common_workload}


def builtin(name: str) -> Workload:
    """A built-in workload by name; an unknown one is refused with the known ones."""
    make = BUILTIN.get(name)
    if make is None:
        raise UserError(f"unknown workload {name!r}; built in are {', '.join(sorted(BUILTIN))}", field="workload")
    return make()
