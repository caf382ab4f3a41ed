"""One span a request, put together when it ends from what the scheduler decided about it; ``spans`` makes and sends it.

Nothing of OpenTelemetry is imported here.  A request that is not over costs a small record and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Protocol

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from stepwell.core.events import Event, Submitted
from stepwell.core.instructions import Admitted, Finished, Instruction, Preempted, Rejected, Resumed
from stepwell.core.metrics_requests import Live
from stepwell.core.types import NS_PER_S, RequestId
from stepwell.transports.generation import Generation
from stepwell.transports.onlookers import harmless
from stepwell.transports.service import Service
from stepwell.transports.wants import Wants

Attributes = dict[str, str | int | float | Sequence[str]]
MOST_EVENTS = 128
"""Of one span; later ones are left out."""

_CARRIED = (b"traceparent", b"tracestate")


class Asked(msgspec.Struct, frozen=True):
    """What a request brought from outside, and when (ns since 1970)."""

    path: str = ""
    carrier: Mapping[str, str] = {}
    at_ns: int = 0


ASKED: ContextVar[Asked] = ContextVar("asked", default=Asked())  # noqa: B039
"""Of the connection whose task this is."""


class TraceHeaders:
    """A layer of the application that keeps what a span needs of a request's head."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            carried = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _CARRIED}
            ASKED.set(Asked(scope["path"], carried, time.time_ns()))
        await self._app(scope, receive, send)


class Spans(Protocol):
    """Makes spans and sends them, from a thread of its own."""

    def emit(
        self,
        name: str,
        carrier: Mapping[str, str],
        start_ns: int,
        end_ns: int,
        attributes: Attributes,
        events: Sequence[tuple[str, int, Attributes]],
        error: str,
    ) -> None:
        """One span of kind SERVER; ``events`` as (name, ns since 1970, attributes), ``error`` empty if it went well."""
        ...

    def close(self) -> None:
        """Send what waits, if that does not take long."""
        ...


class _Traced:
    """One client request, with the engine's requests that are not over."""

    def __init__(self, asked: Asked, left: Sequence[RequestId], attributes: Attributes, offset_ns: int) -> None:
        """``offset_ns`` makes a time of the engine's clock one in ns since 1970."""
        self.asked = asked
        self.offset_ns = offset_ns
        self.left = dict.fromkeys(left)
        self.attributes = attributes
        self.arrived: dict[RequestId, None] = {}
        self.events: list[tuple[str, int, Attributes]] = []
        self.reasons: list[str] = []
        self.output_tokens = 0
        self.error = ""


class Tracing:
    """An engine's observer.  ``spans`` gets one for each request that reached the engine."""

    def __init__(self, service: Service, spans: Spans) -> None:
        self._spans = spans
        self._model = service.model.name
        self._now_ns = service.clock.now_ns
        self._live: dict[RequestId, _Traced] = {}
        service.observers.append(harmless(self.observe))
        service.begun.append(self.begun)
        service.over.append(self.over)
        service.metrics.ended.append(harmless(self._ended))
        service.closing.append(spans.close)

    @property
    def open(self) -> int:
        """The engine's requests whose span is not made yet."""
        return len(self._live)

    def begun(self, generation: Generation, wants: Wants) -> None:
        """A request was handed to the engine, by the task of the connection that it came over."""
        asked, ids = ASKED.get(), [choice.stream.request for choice in generation.choices]
        sampling, standing = wants.sampling, wants.standing
        whole = "/completions" in asked.path and "/chat/" not in asked.path
        attributes: Attributes = {
            "gen_ai.operation.name": "text_completion" if whole else "chat",
            "gen_ai.provider.name": "stepwell",
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.choice.count": wants.n,
            "gen_ai.request.id": generation.requests,
            "gen_ai.usage.input_tokens": generation.usage[0],
            "stepwell.class": standing.klass,
            "stepwell.tenant": standing.tenant,
        }
        if wants.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = wants.max_tokens
        if sampling.seed is not None:
            attributes["gen_ai.request.seed"] = sampling.seed
        traced = _Traced(asked, ids, attributes, time.time_ns() - self._now_ns())
        self._live |= dict.fromkeys(ids, traced)

    def over(self, generation: Generation) -> None:
        """Nobody waits for it any more.  What the scheduler never saw of it, it will not see."""
        for choice in generation.choices:
            id = choice.stream.request
            traced = self._live.get(id)
            if traced is not None and id not in traced.arrived:
                self._one_over(self._now_ns(), id, "cancelled", "")

    def observe(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        """Take in one turn.  Ends are told by the metrics, which know more of them, in the same turn and before."""
        live = self._live
        if not live:
            return
        for event in events:
            if type(event) is Submitted and event.request in live:
                live[event.request].arrived[event.request] = None
                self._note(now_ns, event.request, "queued", {})
        for item in out:
            if isinstance(item, Admitted) and item.request in live:
                self._note(now_ns, item.request, "admit", {"stepwell.cached_tokens": item.cached})
            elif isinstance(item, Preempted) and item.request in live:
                self._note(now_ns, item.request, "preempt", {"stepwell.mode": item.mode, "stepwell.why": item.reason})
            elif isinstance(item, Resumed) and item.request in live:
                self._note(now_ns, item.request, "resume", {})
            elif isinstance(item, Rejected) and item.request in live:
                self._one_over(now_ns, item.request, item.code, f"refused: {item.code}")

    def _ended(self, now_ns: int, finished: Finished, live: Live, last_ns: int) -> None:
        id = finished.request
        traced = self._live.get(id)
        if traced is None:
            return
        if live.first_ns >= 0:
            self._note(live.first_ns, id, "first_token", {})
        self._note(now_ns, id, "finish", {"stepwell.reason": finished.reason, "stepwell.tokens": finished.tokens})
        traced.output_tokens += finished.tokens
        if "gen_ai.latency.e2e" not in traced.attributes:
            traced.attributes |= _latencies(now_ns, live)
        failed = "" if finished.reason in ("stop", "length", "cancelled") else f"it ended: {finished.reason}"
        self._one_over(now_ns, id, finished.reason, failed)

    def _note(self, at_ns: int, id: RequestId, name: str, attributes: Attributes) -> None:
        traced = self._live[id]
        if len(traced.events) < MOST_EVENTS:
            traced.events.append((name, at_ns + traced.offset_ns, {"stepwell.request": id, **attributes}))

    def _one_over(self, now_ns: int, id: RequestId, reason: str, error: str) -> None:
        traced = self._live.pop(id)
        traced.left.pop(id)
        traced.reasons.append(reason)
        traced.error = traced.error or error
        if traced.left:
            return
        traced.events.sort(key=lambda event: event[1])
        start_ns = traced.asked.at_ns or (traced.events[0][1] if traced.events else now_ns + traced.offset_ns)
        attributes = traced.attributes
        attributes |= {
            "gen_ai.usage.output_tokens": traced.output_tokens,
            "gen_ai.response.finish_reasons": tuple(traced.reasons),
        }
        operation = attributes["gen_ai.operation.name"]
        end_ns = max(now_ns + traced.offset_ns, start_ns)
        name = f"{operation} {self._model}"
        self._spans.emit(name, traced.asked.carrier, start_ns, end_ns, attributes, traced.events, traced.error)


def _latencies(now_ns: int, live: Live) -> Attributes:
    """Under vLLM's names, in seconds; of the first choice to end."""
    spans = {"e2e": (live.arrival_ns, now_ns)}
    if live.admitted_ns >= 0:
        spans["time_in_queue"] = live.arrival_ns, live.admitted_ns
        spans["time_in_model_inference"] = live.admitted_ns, now_ns
    if live.first_ns >= 0:
        spans["time_to_first_token"] = live.arrival_ns, live.first_ns
        spans["time_in_model_prefill"] = live.admitted_ns, live.first_ns
        spans["time_in_model_decode"] = live.first_ns, now_ns
    return {f"gen_ai.latency.{name}": (until - since) / NS_PER_S for name, (since, until) in spans.items()}
