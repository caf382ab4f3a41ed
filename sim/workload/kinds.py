"""The kinds of generated workloads, each with its settings: what ``[workload]`` of a configuration may ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from stepwell.sim.workload.agents import Agents, check_agents, generate_agents
from stepwell.sim.workload.builtin import DEMO
from stepwell.sim.workload.generate import Synthetic, check_synthetic, common_options, generate
from stepwell.sim.workload.request import Workload
from stepwell.sim.workload.retrieval import Retrieval, check_retrieval, generate_retrieval
from stepwell.sim.workload.sessions import Sessions, check_sessions, generate_sessions
from stepwell.sim.workload.users import Users, check_users, generate_users


class Kind(msgspec.Struct, frozen=True):
    """``settings`` is the struct that ``make`` takes, and ``check`` refuses if nothing can be made of it (both raise
    ``UserError``); ``under`` gives values that need not be set.

    ``paced``: arrivals follow a clock, so that they can be scaled to a rate.
    """

    settings: type[msgspec.Struct]
    make: Callable[[Any], Workload]
    check: Callable[[Any], None]
    under: msgspec.Struct | None = None
    paced: bool = True


KINDS: dict[str, Kind] = {
    "builtin": Kind(Synthetic, generate, check_synthetic, DEMO),
    "common": Kind(Synthetic, generate, check_synthetic, common_options()),
    "generate": Kind(Synthetic, generate, check_synthetic),
    "users": Kind(Users, generate_users, check_users, paced=False),
    "sessions": Kind(Sessions, generate_sessions, check_sessions),
    "retrieval": Kind(Retrieval, generate_retrieval, check_retrieval),
    "agents": Kind(Agents, generate_agents, check_agents),
}
