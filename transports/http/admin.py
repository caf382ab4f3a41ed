"""``/admin/scheduler``: who decides here, and another policy in its place while requests run.  ``/admin/pins``: what
prefix reuse is to keep before all else.

There are no keys yet, so these routes answer to this machine only: over its loopback, under its own name, with nothing
in the request that a proxy or a web page would have put there.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated

import anyio
import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stepwell.core.config_types import TenantName
from stepwell.core.errors import CapacityError, UserError
from stepwell.core.instructions import PolicyFault
from stepwell.core.introspect import promises_of
from stepwell.core.registry import whole_options
from stepwell.core.types import NS_PER_S
from stepwell.transports.errors import RequestError
from stepwell.transports.http.body import read_body, service_of
from stepwell.transports.http.decoding import decode
from stepwell.transports.http.messages import chat_messages, messages_of
from stepwell.transports.service import Service

log = structlog.get_logger("stepwell.admin")

MOST_BODY = 64 << 10
"""Bytes; options go into the journal."""

PATIENCE_S = 10.0
"""The engine takes a new policy in between two steps' events, at once unless something is very wrong."""

_PASSED_ON = ("origin", "forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
"""Headers of web pages and proxies."""


class Swap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``PUT /admin/scheduler``.

    ``options`` left out: those of the configuration for the policy that it names, the defaults of any other.
    """

    policy: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    options: dict[str, object] | None = None
    why: Annotated[str, msgspec.Meta(max_length=200)] = ""


_SWAP = msgspec.json.Decoder(Swap)


# ------------------------------------------------------------------------------------------------ who may


def _local(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Only for whoever is on this machine, and speaks for himself."""

    async def guarded(request: Request) -> Response:
        host = request.client.host if request.client is not None else ""
        passed_on = any(name in request.headers for name in _PASSED_ON)
        if passed_on or not _loopback(host) or not _loopback(request.url.hostname or ""):
            raise RequestError(
                "admin routes answer on this machine only: ask http://127.0.0.1, not through a proxy or a web page",
                status=403,
                code="admin_local_only",
            )
        return await answer(request)

    return guarded


def _loopback(host: str) -> bool:
    """Whether an address, or the name in ``Host``, is that of the machine itself."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


# ------------------------------------------------------------------------------------------------ looking


async def show(request: Request) -> Response:
    """``GET /admin/scheduler``."""
    return JSONResponse(status_of(service_of(request)))


def status_of(service: Service) -> dict[str, object]:
    """Who decides, since when and why, and over how much."""
    scheduler, record = service.scheduler, service.metrics.policy
    state = scheduler.state
    return {
        **_decides(service),
        "promises": promises_of(state.policy),
        "configured": service.config.scheduler.policy,
        "since": _when(service, record.since_ns),
        "why": record.why,
        "swaps": record.swaps,
        "fallbacks": record.fallbacks,
        "stands_in": bool(record.stands_in),
        "last_fault": _fault(service, record.last_fault),
        "queue": {"waiting": len(state.waiting), "running": state.view.running, "swapped": len(state.swapped)},
        "pages": {"free": state.view.free_pages, "total": state.view.total_pages},
        "shadow": _shadow(service),
    }


def _decides(service: Service) -> dict[str, object]:
    return {"policy": service.scheduler.policy_name, "options": service.scheduler.policy_options}


def _fault(service: Service, fault: PolicyFault | None) -> Mapping[str, object] | None:
    if fault is None:
        return None
    told = {"policy": fault.policy, "step": fault.step, "rule": fault.rule, "detail": fault.detail}
    return {**told, "at": _when(service, service.metrics.policy.fault_ns)}


def _shadow(service: Service) -> object:
    """Its report, with times on the wall's clock; None without one."""
    shadow = service.metrics.shadow
    if shadow is None:
        return None
    told: dict[str, object] = msgspec.to_builtins(shadow.report())
    examples = [msgspec.structs.asdict(each) for each in shadow.tally.examples()]
    told["examples"] = [{"at": _when(service, each.pop("now_ns")), **each} for each in examples]
    return told


def _when(service: Service, at_ns: int) -> str:
    """A time of the engine's clock, on the wall's."""
    ago_s = (service.clock.now_ns() - at_ns) / NS_PER_S
    return datetime.fromtimestamp(time.time() - ago_s, UTC).isoformat(timespec="milliseconds")


# ------------------------------------------------------------------------------------------------ changing


async def change(request: Request) -> Response:
    """``PUT /admin/scheduler``: another policy, or the same with other options, from the next step on."""
    service = service_of(request)
    body = await read_body(request)
    if len(body) > MOST_BODY:
        raise RequestError(f"larger than {MOST_BODY >> 10} KiB", status=413, code="request_too_large")
    swap = decode(body, _SWAP)
    old = _decides(service)
    await _swap(service, swap)
    return JSONResponse({"old": old, "new": _decides(service), "scheduler": status_of(service)})


async def _swap(service: Service, swap: Swap) -> None:
    """Raises ``UserError`` if there is no such policy, or not with such options; then the present one goes on."""
    configured = service.config.scheduler
    given = swap.options
    if given is None:
        given = dict(configured.options) if swap.policy == configured.policy else {}
    if service.alive:
        raise CapacityError(service.alive, code="not_serving")
    changed = service.policy_changed
    try:
        service.scheduler.make_policy(swap.policy, given)  # may it be named from outside at all?
        whole = whole_options("policies", swap.policy, given)
        service.engine.use_policy(swap.policy, whole, swap.why or "by PUT /admin/scheduler")
    except UserError as error:
        raise _of_the_body(error) from None
    with anyio.move_on_after(PATIENCE_S) as patience:
        await changed.wait()
    if patience.cancelled_caught:
        raise CapacityError("the engine has not taken the policy in", code="not_serving")
    log.warning("another policy decides", policy=swap.policy, options=whole, why=swap.why)


# ------------------------------------------------------------------------------------------------ pins


class Pinned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``PUT`` and ``DELETE /admin/pins``: how chats begin, a system prompt say, and whose they are."""

    messages: msgspec.Raw
    tenant: TenantName = "default"


_PINNED = msgspec.json.Decoder(Pinned)


async def pin(request: Request) -> Response:
    """From the next step on, or no longer, the full pages of these messages are kept once they are computed."""
    service = service_of(request)
    asked = decode(await read_body(request), _PINNED)
    on = request.method == "PUT"
    prompt = await service.prompts.chat(messages_of(chat_messages(asked.messages)), {}, "messages")
    (keys,) = await service.keys([prompt], asked.tenant)
    if on and not keys:
        memory = service.config.memory
        reuses = service.scheduler.state.allocator.reuses_prefixes
        why = f"fill no page of {memory.page_size} tokens" if reuses else f"{memory.allocator!r} reuses no prompts"
        raise RequestError(f"nothing to keep: {why}", field="messages")
    service.engine.pin(keys, on)
    log.warning("pinned" if on else "no longer pinned", pages=len(keys), tenant=asked.tenant)
    return JSONResponse({"pinned": on, "pages": len(keys)})


def _of_the_body(error: UserError) -> UserError:
    """The mistake under the name that the field has here."""
    return UserError(error.message, field=error.field.removeprefix("scheduler."))


ADMIN = (
    Route("/admin/scheduler", _local(show), methods=["GET"]),
    Route("/admin/scheduler", _local(change), methods=["PUT"]),
    Route("/admin/pins", _local(pin), methods=["PUT", "DELETE"]),
)
