"""``/v1/responses``: made, read again, cancelled and deleted over HTTP."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepwell.core.errors import UserError
from stepwell.transports.errors import RequestError
from stepwell.transports.http.answering import ENGINE_ID, check_model
from stepwell.transports.http.body import body_done, read_body, request_id, service_of
from stepwell.transports.http.decoding import decode_body
from stepwell.transports.http.responses_stream import ResponseStream
from stepwell.transports.http.sse import only_head, unless_gone
from stepwell.transports.responses.create import CREATE, order_of
from stepwell.transports.responses.house import Found, Responses
from stepwell.transports.responses.live import Live, Reader

MOST_ITEMS = 100
"""Input items in one answer."""


def responses_of(request: Request) -> Responses:
    """The application's responses."""
    return cast(Responses, request.app.state.responses)


async def create(request: Request) -> Response:
    """``POST /v1/responses``: whole, streamed, or in the background."""
    service, responses = service_of(request), responses_of(request)
    asked = await decode_body(await read_body(request), CREATE)
    check_model(service, asked.model)
    service.check_taking()
    live = responses.live(order_of(asked, service, request.headers))
    del asked  # and with it the body
    headers = {"X-Request-Id": request_id(request)}

    async def begin() -> Reader:
        await live.begin()
        body_done(request)
        await responses.noted(live)
        headers[ENGINE_ID] = live.answer.requests
        return live.read()

    if live.order.stream:
        return ResponseStream(service, await unless_gone(request, service, begin), headers)

    async def whole() -> bytes:
        reader = await begin()
        try:
            if not live.order.background:
                await live.finished()
        finally:
            reader.leave()
        if live.failure is not None:
            raise live.failure
        return msgspec.json.encode(live.answer.response())

    body = await unless_gone(request, service, whole)
    return Response(body, media_type="application/json", headers=headers)


async def _found(request: Request) -> Found:
    responses = responses_of(request)
    return await responses.find(responses.tenant(request.headers), request.path_params["id"])


def _told(request: Request, value: Any) -> Response:
    return Response(
        msgspec.json.encode(value), media_type="application/json", headers={"X-Request-Id": request_id(request)}
    )


async def retrieve(request: Request) -> Response:
    """``GET /v1/responses/{id}``, and with ``stream=true`` its events, from behind ``starting_after`` on."""
    found = await _found(request)
    if request.query_params.get("stream", "false") not in ("true", "1"):
        return _told(request, found.response())
    if not isinstance(found, Live):
        raise RequestError(
            "its events are no longer kept; without stream it has all of its text",
            field="stream",
            status=410,
            code="events_gone",
        )
    after = _number(request, "starting_after", -1, least=-1)
    log = found.answer.log
    if after >= log.end:
        raise UserError(f"there is no event {after}, the last one is {log.end - 1}", field="starting_after")
    if after + 1 < log.end:
        log.at(after + 1)
    headers = {"X-Request-Id": request_id(request)}
    if request.method == "HEAD":
        return only_head(headers)
    return ResponseStream(service_of(request), found.read(after), headers)


async def delete(request: Request) -> Response:
    """``DELETE /v1/responses/{id}``; one that is on its way ends."""
    found = await _found(request)
    await responses_of(request).delete(found)
    return _told(request, {"id": found.id, "object": "response", "deleted": True})


async def cancel(request: Request) -> Response:
    """``POST /v1/responses/{id}/cancel``: ends within a step; harmless if it has ended."""
    found = await _found(request)
    if isinstance(found, Live):
        found.cancel()
        await found.finished()
    return _told(request, found.response())


async def input_items(request: Request) -> Response:
    """``GET /v1/responses/{id}/input_items``, the last first unless ``order=asc``."""
    items = await responses_of(request).input_items(await _found(request))
    order, after = request.query_params.get("order", "desc"), request.query_params.get("after")
    if order not in ("asc", "desc"):
        raise UserError("is asc or desc", field="order")
    if order == "desc":
        items.reverse()
    if after:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise UserError("there is no such item", field="after")
        items = items[ids.index(after) + 1 :]
    most = _number(request, "limit", 20, least=1, most=MOST_ITEMS)
    page = items[:most]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return _told(request, {"object": "list", "data": page, **ends, "has_more": len(items) > most})


def _number(request: Request, name: str, default: int, *, least: int, most: int = 1 << 40) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    try:
        number = int(given) if len(given) < 20 else most + 1
    except ValueError:
        raise RequestError("must be a whole number", field=name) from None
    if not least <= number <= most:
        raise RequestError(f"must be from {least} to {most}", field=name)
    return number


RESPONSES_ROUTES = [
    Route("/v1/responses", create, methods=["POST"]),
    Route("/v1/responses/{id}", retrieve, methods=["GET"]),
    Route("/v1/responses/{id}", delete, methods=["DELETE"]),
    Route("/v1/responses/{id}/cancel", cancel, methods=["POST"]),
    Route("/v1/responses/{id}/input_items", input_items, methods=["GET"]),
]
