"""What enters the scheduler.  Everything a decision depends on arrives as one of these, with one integer time a batch.

Events are encoded as arrays (tag first), so that a journal stays small.  At equal times a batch is ordered: step
results, then cancels and stops, then timers, what an operator wants, then arrivals (see ``in_order``).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stepwell.core.types import RequestId, StepId


class StepDone(msgspec.Struct, array_like=True, tag="done", gc=False):
    """Step ``step`` finished: its tokens exist.  ``ended`` are the requests that produced an end token in it.

    ``keys`` identify full pages behind those of a prompt, for prefix reuse: they become findable as far as computed.
    """

    step: StepId
    ended: list[RequestId] = []
    elapsed_ns: int = 0
    copy_ns: int = 0
    keys: list[tuple[RequestId, list[int]]] = []


class RunDone(msgspec.Struct, array_like=True, tag="run", gc=False):
    """Steps ``step``, ``step`` + 1, … finished at ``done_ns`` with no request ending: a repeated plan, taken in one go.

    Only a shell that was told so by ``Scheduler.repeatable`` may send it, alone and at the last of the times, and only
    at depth 1.  It means exactly what the same number of ``StepDone`` events at those times would mean, and is
    journalled the same way.
    """

    step: StepId
    done_ns: list[int]


class StepFailed(msgspec.Struct, array_like=True, tag="failed", gc=False):
    """Step ``step`` and every later one in flight produced nothing.

    ``blamed`` requests end with reason ``error``; all others on the device go back to waiting and are recomputed.
    ``device_lost`` says that the host tier is gone as well (a worker process died), so swapped requests are too.  That
    may happen between steps: then ``step`` is 0.
    """

    step: StepId
    blamed: list[RequestId] = []
    reason: str = ""
    device_lost: bool = False


class Cancel(msgspec.Struct, array_like=True, tag="cancel", gc=False):
    """The client left or asked to stop.  Unknown or finished requests are ignored: such races are normal.

    ``keys`` as in ``StepDone``.
    """

    request: RequestId
    keys: list[int] = []


class Stop(msgspec.Struct, array_like=True, tag="stop", gc=False):
    """The text pipeline found a stop string; ``keep`` output tokens belong to the answer.

    ``keys`` as in ``StepDone``.
    """

    request: RequestId
    keep: int
    keys: list[int] = []


class Timer(msgspec.Struct, array_like=True, tag="timer", gc=False):
    """The time asked for by a ``Wake`` instruction has come."""


class Pin(msgspec.Struct, array_like=True, tag="pin", gc=False):
    """From here on, or no longer, keep what ``keys`` identify findable before all that is not pinned."""

    keys: list[int]
    on: bool = True


class ResetCache(msgspec.Struct, array_like=True, tag="reset", gc=False):
    """Nothing that was computed of earlier prompts is to be found any more; pages in use stay with their requests."""

    why: str = ""


class Pause(msgspec.Struct, array_like=True, tag="pause", gc=False):
    """From here on launch no step; or (``on`` false) launch them again.  Steps in flight end, and arrivals wait."""

    on: bool = True
    why: str = ""


class UsePolicy(msgspec.Struct, array_like=True, tag="policy", gc=False):
    """From here on decide by another policy, rebuilt from the present state.  ``options`` is its JSON-like table."""

    name: str
    options: dict[str, object] = {}
    why: str = ""


class Submitted(msgspec.Struct, array_like=True, tag="submit", gc=False):
    """A request arrived.  Ids count upwards in order of arrival.

    ``max_tokens`` bounds the output (the core never learns the true length); ``expires_ns`` is the absolute time after
    which it is no longer worth starting (0: never); ``keys`` identify full prompt pages for prefix reuse.  A lower
    ``priority`` is served earlier, by policies that look at it.  ``program`` is the conversation, session or agent
    whose request it is; empty if none is known.  ``parent`` is an earlier request with the same prompt, which is
    computed once for both (0: none).
    """

    request: RequestId
    prompt_tokens: int
    max_tokens: int
    klass: str = "chat"
    tenant: str = "default"
    expires_ns: int = 0
    keys: list[int] = []
    priority: int = 0
    program: str = ""
    parent: RequestId = 0


Event = StepDone | RunDone | StepFailed | Cancel | Stop | Timer | Pin | ResetCache | Pause | UsePolicy | Submitted

_ORDER: dict[type, int] = {
    RunDone: 0,
    StepDone: 1,
    StepFailed: 2,
    Cancel: 3,
    Stop: 3,
    Timer: 4,
    Pin: 5,
    ResetCache: 5,
    Pause: 6,
    UsePolicy: 6,
    Submitted: 7,
}


def in_order(events: Iterable[Event]) -> list[Event]:
    """The canonical order of events that carry the same time; stable within a kind."""
    return sorted(events, key=lambda event: _ORDER[type(event)])
