"""``/admin/scheduler``: who decides here, and another policy in its place while requests run.  ``/admin/pins``: what
prefix reuse is to keep before all else.

The other admin routes are beside it (``admin_*.py``); ``admin_guard`` says whom they answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

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
from stepwell.transports.http.admin_control import CONTROL
from stepwell.transports.http.admin_events import EVENTS
from stepwell.transports.http.admin_guard import guarded
from stepwell.transports.http.admin_requests import REQUESTS
from stepwell.transports.http.admin_shared import Why, asked, taken_in, when
from stepwell.transports.http.body import service_of
from stepwell.transports.http.messages import chat_messages, messages_of
from stepwell.transports.service import Service

log = structlog.get_logger("stepwell.admin")


class Swap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``PUT /admin/scheduler``.

    ``options`` left out: those of the configuration for the policy that it names, the defaults of any other.
    """

    policy: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    options: dict[str, object] | None = None
    why: Why = ""


_SWAP = msgspec.json.Decoder(Swap)


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
        "since": when(service, record.since_ns),
        "why": record.why,
        "swaps": record.swaps,
        "fallbacks": record.fallbacks,
        "stands_in": bool(record.stands_in),
        "last_fault": _fault(service, record.last_fault),
        "queue": {"waiting": len(state.waiting), "running": state.view.running, "swapped": len(state.swapped)},
        "classes": {
            name: {"in_line": in_line, "live": state.backlog.live[name]}
            for name, in_line in state.backlog.in_line().items()
        },
        "paused": scheduler.paused,
        "estimated_wait_s": round(service.wait_ns / NS_PER_S, 3),
        "pages": {"free": state.view.free_pages, "total": state.view.total_pages},
        "shadow": _shadow(service),
    }


def _decides(service: Service) -> dict[str, object]:
    return {"policy": service.scheduler.policy_name, "options": service.scheduler.policy_options}


def _fault(service: Service, fault: PolicyFault | None) -> Mapping[str, object] | None:
    if fault is None:
        return None
    told = {"policy": fault.policy, "step": fault.step, "rule": fault.rule, "detail": fault.detail}
    return {**told, "at": when(service, service.metrics.policy.fault_ns)}


def _shadow(service: Service) -> object:
    """Its report, with times on the wall's clock; None without one."""
    shadow = service.metrics.shadow
    if shadow is None:
        return None
    told: dict[str, object] = msgspec.to_builtins(shadow.report())
    examples = [msgspec.structs.asdict(each) for each in shadow.tally.examples()]
    told["examples"] = [{"at": when(service, each.pop("now_ns")), **each} for each in examples]
    return told


# ------------------------------------------------------------------------------------------------ changing


async def change(request: Request) -> Response:
    """``PUT /admin/scheduler``: another policy, or the same with other options, from the next step on."""
    service = service_of(request)
    swap = await asked(request, _SWAP)
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
    swaps = service.metrics.policy.swaps
    try:
        service.scheduler.make_policy(swap.policy, given)  # may it be named from outside at all?
        whole = whole_options("policies", swap.policy, given)
        service.engine.use_policy(swap.policy, whole, swap.why or "by PUT /admin/scheduler")
    except UserError as error:
        raise _of_the_body(error) from None
    await taken_in(service, lambda: service.metrics.policy.swaps > swaps)
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
    body = await asked(request, _PINNED)
    on = request.method == "PUT"
    prompt = await service.prompts.chat(messages_of(chat_messages(body.messages)), {}, "messages")
    (keys,) = await service.keys([prompt], body.tenant)
    if on and not keys:
        memory = service.config.memory
        reuses = service.scheduler.state.allocator.reuses_prefixes
        why = f"fill no page of {memory.page_size} tokens" if reuses else f"{memory.allocator!r} reuses no prompts"
        raise RequestError(f"nothing to keep: {why}", field="messages")
    service.engine.pin(keys, on)
    log.warning("pinned" if on else "no longer pinned", pages=len(keys), tenant=body.tenant)
    return JSONResponse({"pinned": on, "pages": len(keys)})


def _of_the_body(error: UserError) -> UserError:
    """The mistake under the name that the field has here."""
    return UserError(error.message, field=error.field.removeprefix("scheduler."))


ADMIN = (
    Route("/admin/scheduler", guarded(show), methods=["GET"]),
    Route("/admin/scheduler", guarded(change), methods=["PUT"]),
    Route("/admin/pins", guarded(pin), methods=["PUT", "DELETE"]),
    *CONTROL,
    *REQUESTS,
    *EVENTS,
)
