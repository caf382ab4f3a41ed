"""What an operator does to a server as a whole: hold it, drain it, end requests, empty the cache, look at its settings,
switch its journal.

Whatever changes a decision (pause, cancel, reset) is an event and in the journal, so that a replay takes the same way.
"""

from __future__ import annotations

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stepwell.core.errors import CapacityError
from stepwell.core.events import Pause, ResetCache
from stepwell.core.instructions import CacheReset
from stepwell.transports.errors import RequestError
from stepwell.transports.generation import Generation
from stepwell.transports.http.admin_guard import guarded
from stepwell.transports.http.admin_settings import settings_of
from stepwell.transports.http.admin_shared import Why, asked, taken_in
from stepwell.transports.http.body import service_of
from stepwell.transports.service import Service
from stepwell.transports.wire import Standing

log = structlog.get_logger("stepwell.admin")

NAMED = 100
"""Requests that an answer names, at most."""


class Because(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A body that gives a reason or nothing."""

    why: Why = ""


class Abort(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"klass": "class"}):
    """The body of ``POST /admin/abort``: exactly one of the first four."""

    request: int | None = None
    tenant: str | None = None
    klass: str | None = None
    all: bool = False
    why: Why = ""


class Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /admin/journal``."""

    on: bool | None = None
    rotate: bool = False


_BECAUSE = msgspec.json.Decoder(Because)
_ABORT = msgspec.json.Decoder(Abort)
_SWITCH = msgspec.json.Decoder(Switch)


# ------------------------------------------------------------------------------------------------ pause, drain


async def pause(request: Request) -> Response:
    """``POST /admin/pause`` and ``/admin/resume``: no step is launched, or again."""
    service = service_of(request)
    on = request.url.path.endswith("pause")
    body = await asked(request, _BECAUSE)
    if service.scheduler.paused != on:
        service.engine.post(Pause(on, body.why))
        await taken_in(service, lambda: service.scheduler.paused == on)
        log.warning("paused" if on else "resumed", why=body.why)
    return JSONResponse(_busy(service))


async def drain(request: Request) -> Response:
    """``/admin/drain``: how far it is, or (POST) begin, as SIGTERM does."""
    service = service_of(request)
    if request.method == "POST" and not service.leaving:
        log.warning("draining, as an operator wants", seconds=service.limits.drain_s)
        service.leave()
    return JSONResponse(_busy(service))


def _busy(service: Service) -> dict[str, object]:
    state = service.scheduler.state
    return {
        "paused": service.scheduler.paused,
        "draining": service.leaving or service.draining,
        "drain_s": service.limits.drain_s,
        "ready": service.unready or "yes",
        "answers": len(service.open),
        "waiting": len(state.requests) - state.view.running - len(state.swapped),
        "running": state.view.running,
        "swapped": len(state.swapped),
        "steps_in_flight": len(state.inflight),
        "sockets": service.sockets_open,
    }


# ------------------------------------------------------------------------------------------------ abort


async def abort(request: Request) -> Response:
    """``POST /admin/abort``: whoever asked is told, and the scheduler hears that they were cancelled."""
    service = service_of(request)
    body = await asked(request, _ABORT)
    given = [body.request is not None, body.tenant is not None, body.klass is not None, body.all]
    if sum(given) != 1:
        raise RequestError("say which: one of request, tenant, class, all", field="request")
    if body.klass is not None and body.klass not in (known := [each.name for each in service.config.classes]):
        raise RequestError(f"there is no class {body.klass[:64]!r} here; known: {', '.join(known)}", field="class")
    found = [each for each, opened in service.open.items() if not each.ended and _meant(body, each, opened.standing)]
    if not found and (body.request is not None or body.tenant is not None):
        raise _nobody(service, body)
    told = CapacityError("an operator ended this request" + (f": {body.why}" if body.why else ""), code="aborted")
    for generation in found:
        generation.fail(told)
    ids = sorted({choice.stream.request for each in found for choice in each.choices})
    log.warning("requests aborted", count=len(ids), why=body.why)
    return JSONResponse({"aborted": len(ids), "requests": ids[:NAMED]})


def _meant(body: Abort, generation: Generation, standing: Standing) -> bool:
    """Also of those that the scheduler has not heard of yet."""
    if body.request is not None:
        return any(choice.stream.request == body.request and not choice.over for choice in generation.choices)
    return body.all or (standing.tenant if body.tenant is not None else standing.klass) in (body.tenant, body.klass)


def _nobody(service: Service, body: Abort) -> RequestError:
    """A name that was mistyped must not look like one with nothing to end."""
    what, code = f"no request {body.request}", "request_not_found"
    if body.tenant is not None:
        what, code = f"no request of a tenant {body.tenant[:64]!r}", "tenant_not_found"
    return RequestError(
        f"there is {what} in progress", field="tenant" if body.tenant else "request", status=404, code=code
    )


# ------------------------------------------------------------------------------------------------ cache


async def reset_cache(request: Request) -> Response:
    """``POST /admin/cache/reset``: what is kept of earlier prompts is given up; pages in use stay where they are."""
    service = service_of(request)
    body = await asked(request, _BECAUSE)
    allocator = service.scheduler.state.allocator
    if not allocator.reuses_prefixes:
        name = service.config.memory.allocator
        raise RequestError(f"there is no cache: the allocator {name!r} reuses no prompts", status=409, code="no_cache")
    before, freed = service.decisions.turn, list[int]()

    def done() -> bool:
        for _, decided in service.decisions.since(before + 1, service.decisions.turn - before):
            freed.extend(each.pages for each in decided.instructions if isinstance(each, CacheReset))
        return bool(freed)

    service.engine.post(ResetCache(body.why))
    await taken_in(service, done)
    log.warning("prefix cache reset", pages=freed[0], why=body.why)
    usage = allocator.usage()
    return JSONResponse({"freed_pages": freed[0], "pages_in_use": usage.used, "pages": usage.total})


# ------------------------------------------------------------------------------------------------ settings, journal


async def config(request: Request) -> Response:
    """``GET /admin/config``: every setting, and where those that somebody set came from."""
    service = service_of(request)
    return JSONResponse(settings_of(service.config, service.origin))


async def journal(request: Request) -> Response:
    """``/admin/journal``: its state; by POST on, off, or a new segment."""
    service = service_of(request)
    control = service.journal
    if control is None:
        if request.method == "GET":
            return JSONResponse({"on": False, "folder": None})
        raise RequestError(
            "there is no folder for a journal: --journal DIR or admin.journal_folder names one",
            status=409,
            code="no_journal_folder",
        )
    if request.method == "POST":
        body = await asked(request, _SWITCH)
        if body.on is None and not body.rotate:
            raise RequestError("say what: on true or false, or rotate true", field="on")
        if body.on:
            control.start()
        if body.rotate:
            control.rotate()
        if body.on is False:
            control.stop()
        log.warning("journal switched", **control.state())
    return JSONResponse(control.state())


CONTROL = (
    Route("/admin/pause", guarded(pause), methods=["POST"]),
    Route("/admin/resume", guarded(pause), methods=["POST"]),
    Route("/admin/drain", guarded(drain), methods=["GET", "POST"]),
    Route("/admin/abort", guarded(abort), methods=["POST"]),
    Route("/admin/cache/reset", guarded(reset_cache), methods=["POST"]),
    Route("/admin/config", guarded(config), methods=["GET"]),
    Route("/admin/journal", guarded(journal), methods=["GET", "POST"]),
)
