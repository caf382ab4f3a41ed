"""Session affinity: the next turn of a session that was served a moment ago goes before newcomers, for a bounded time.

For: chats and agents, whose next turn finds its past in the KV cache if it comes soon.  A session is a request's
program; others stand in line as if they had come ``head_start_s`` later.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.core.types import FOREVER, RequestId
from stepwell.policies.toolkit import OrderedLine, pack, seconds


class SessionAffinity:
    """Sessions that go on before sessions that begin."""

    api_version = 1
    promises = Promises(work_conserving=True, bounded_wait=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        keep_s: float = 60.0  # so long after its last answer a session goes on
        head_start_s: float = 5.0  # newcomers that came up to so long before are passed over
        sessions: int = 4096  # the latest ones, which are remembered

    def __init__(self, options: Options) -> None:
        self.options, self.head_start_ns = options, seconds(options.head_start_s)
        self.ended: dict[str, int] = {}
        self.goes_on: dict[RequestId, bool] = {}
        self.line = OrderedLine(self.place)

    def place(self, request: RequestView, now_ns: int) -> tuple[int, int]:
        return (request.arrival_ns + (0 if self.goes_on[request.id] else self.head_start_ns), request.id)

    def observe(self, event: PolicyEvent) -> None:
        id, session = event.request.id, event.request.program
        if event.kind == "arrived":
            self.goes_on[id] = event.now_ns - self.ended.get(session, -FOREVER) <= seconds(self.options.keep_s)
        self.line.observe(event)
        if event.kind == "finished":
            del self.goes_on[id]
            self.ended.pop(session, None)
            self.ended |= {session: event.now_ns} if session else {}
            if len(self.ended) > self.options.sessions:
                del self.ended[next(iter(self.ended))]

    def plan(self, view: SchedulerView) -> StepPlan:
        return pack(view, self.line, rank=self.place)

    def dump(self) -> object:
        return [list(self.ended.items()), list(self.goes_on.items())]

    def load(self, data: Any) -> None:
        self.ended, self.goes_on = dict(data[0]), dict(data[1])
        self.line.reorder(0)
