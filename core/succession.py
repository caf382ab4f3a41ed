"""How a policy takes over from another, or from itself: it observes the live requests, and remembers."""

from __future__ import annotations

import msgspec

from stepwell.core.errors import PLUGIN_RAISES, describe
from stepwell.core.protocols import Remembering, SchedulerPolicy
from stepwell.core.state import State


def memory_of(policy: SchedulerPolicy) -> object:
    """What it remembers beyond the live requests, as JSON-like data; None if nothing, or if it fails to say."""
    if not isinstance(policy, Remembering):
        return None
    try:
        return msgspec.json.decode(msgspec.json.encode(policy.dump()))
    except PLUGIN_RAISES:
        return None  # a journal's segment may begin here, and that must not end the run; conformance finds the cause


def introduce(state: State, memory: object) -> None:
    """Let the new policy observe the live requests as if they had just come to where they are, and remember."""
    for request in state.requests.values():
        if request in state.followers:
            continue
        state.tell("arrived", request)
        if request.id in state.swapped:
            state.tell("admitted", request)
            state.tell("swapped", request)
        elif request.id not in state.waiting:
            state.tell("admitted", request)
    if memory is not None and isinstance(state.policy, Remembering):
        try:
            state.policy.load(memory)
        except PLUGIN_RAISES as error:
            state.fault = state.fault or ("load raised", describe(error))
