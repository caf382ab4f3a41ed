"""The kinds of generated workloads, each with its settings: what ``[workload]`` of a configuration may ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from stepwell.sim.workload.agents import Agents, generate_agents
from stepwell.sim.workload.builtin import DEMO
from stepwell.sim.workload.generate import Synthetic, common_options, generate
from stepwell.sim.workload.request import Workload
from stepwell.sim.workload.retrieval import Retrieval, generate_retrieval
from stepwell.sim.workload.sessions import Sessions, generate_sessions
from stepwell.sim.workload.users import Users, generate_users


class Kind(msgspec.Struct, frozen=True):
    """``settings`` is the struct that ``make`` takes; ``under`` gives values that need not be set.

    ``paced``: arrivals follow a clock, so that they can be scaled to a rate.
    """

    settings: type[msgspec.Struct]
    make: Callable[[Any], Workload]
    under: msgspec.Struct | None = None
    paced: bool = True


KINDS: dict[str, Kind] = {
    "builtin": Kind(Synthetic, generate, DEMO),
    "common": Kind(Synthetic, generate, common_options()),
    "generate": Kind(Synthetic, generate),
    "users": Kind(Users, generate_users, paced=False),
    "sessions": Kind(Sessions, generate_sessions),
    "retrieval": Kind(Retrieval, generate_retrieval),
    "agents": Kind(Agents, generate_agents),
}
