"""``/v1/files`` in OpenAI's shapes: upload, list, look, read, delete.  Everything belongs to the tenant who sent it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from stepwell.transports.errors import RequestError
from stepwell.transports.http.body import service_of
from stepwell.transports.http.multipart import Field, FileBegins, FileEnds, Form, Item
from stepwell.transports.http.sse import ClientGone
from stepwell.transports.service import Service
from stepwell.transports.store import batches, files
from stepwell.transports.store.files import FileRow
from stepwell.transports.store.store import Store, existing
from stepwell.transports.store.uploads import Upload

PURPOSES = ("batch",)
LEAST_RATE = 16 << 10
"""Bytes a second that an upload must come with, beyond the time that any body has."""
MOST_LISTED = 10_000
LEAST_S, MOST_S = 3600, 30 * 86_400
"""Of ``expires_after``."""
_BESIDE = 64 << 10
"""Bytes of a form beside its file."""


def kept(request: Request) -> tuple[Service, Store, str]:
    """The service, its store, and whose request this is."""
    service = service_of(request)
    return service, existing(service.store), service.wire.tenant(request.headers)


def answer(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


# ------------------------------------------------------------------------------------------------ upload


async def upload(request: Request) -> Response:
    """``POST /v1/files``: a form with the fields ``purpose``, ``file``, and ``expires_after[…]`` if it should."""
    service, store, tenant = kept(request)
    service.check_taking()
    form = Form(request.headers.get("content-type", ""))
    most = store.room.file_bytes + _BESIDE
    if int(request.headers.get("content-length", "0") or 0) > most:
        raise _too_large(store)
    said: dict[str, str] = {}
    filename: str | None = None
    with store.uploading():
        async with Upload(store, tenant) as upload:
            async with aclosing(_items(request, service, form, most)) as items:
                async for item in items:
                    match item:
                        case Field(name, value):
                            said[name] = value
                        case FileBegins(name, given):
                            if name != "file" or filename is not None:
                                raise RequestError("there is one file, and it is called file", field=name[:64])
                            filename = given
                        case FileEnds():
                            pass
                        case _:
                            await upload.add(item)
            if filename is None:
                raise RequestError("is required", field="file")
            purpose, expires_s = _wishes(said, store)
            row = await upload.end(filename, purpose, expires_s)
    return answer(row.object)


async def _items(request: Request, service: Service, form: Form, most: int) -> AsyncGenerator[Item]:
    """What comes, as it comes; an upload may take longer than another body, as long as it comes."""
    size, begun = 0, anyio.current_time()
    stream = request.stream()
    try:
        while True:
            deadline = begun + service.limits.body_timeout_s + size / LEAST_RATE
            with service.stopping.given_up(), anyio.fail_after(max(deadline - anyio.current_time(), 0)):
                part = await anext(stream, None)
            if part is None:
                break
            size += len(part)
            if size > most:
                raise RequestError("the form is too large", status=413, code="request_too_large")
            for item in form.feed(part):
                yield item
    except TimeoutError:
        raise RequestError("the body took too long to arrive", status=408, code="request_timeout") from None
    except ClientDisconnect:
        raise ClientGone from None
    form.end()


def _too_large(store: Store) -> RequestError:
    return RequestError(f"is larger than {store.limits.file_mb:g} MB", field="file", status=413, code="file_too_large")


def _wishes(said: dict[str, str], store: Store) -> tuple[str, int]:
    """The purpose, and the age at which it goes."""
    purpose = said.get("purpose", "")
    if not purpose:
        raise RequestError("is required", field="purpose")
    if purpose not in PURPOSES:
        raise RequestError(f"{purpose[:64]!r} is not kept here; known: {', '.join(PURPOSES)}", field="purpose")
    seconds = said.get("expires_after[seconds]")
    if seconds is None and "expires_after[anchor]" not in said:
        return purpose, store.file_s
    if said.get("expires_after[anchor]") != "created_at":
        raise RequestError("must be 'created_at'", field="expires_after[anchor]")
    if seconds is None or not seconds.isdecimal() or len(seconds) > 9 or not LEAST_S <= int(seconds) <= MOST_S:
        raise RequestError(f"must be {LEAST_S} to {MOST_S}", field="expires_after[seconds]")
    return purpose, int(seconds)


# ------------------------------------------------------------------------------------------------ looking


async def listed(request: Request) -> Response:
    """``GET /v1/files``."""
    _, store, tenant = kept(request)
    asked = request.query_params
    order = asked.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError("must be 'asc' or 'desc'", field="order")
    limit = limit_of(request, MOST_LISTED, MOST_LISTED)
    after, purpose = asked.get("after", ""), asked.get("purpose", "")

    def work(db: Any) -> bytes:
        found = files.listed(db, tenant, purpose=purpose, after=after, limit=limit, newest_first=order == "desc")
        return msgspec.json.encode(page_of([row.object for row in found[0]], found[1]))

    return Response(await store.database.read(work), media_type="application/json")


def limit_of(request: Request, most: int, default: int) -> int:
    given = request.query_params.get("limit", str(default))
    if not given.isdecimal() or len(given) > 9 or not 1 <= int(given) <= most:
        raise RequestError(f"must be 1 to {most}", field="limit")
    return int(given)


def page_of(objects: list[dict[str, Any]], more: bool) -> dict[str, Any]:
    """OpenAI's list."""
    first, last = (objects[0]["id"], objects[-1]["id"]) if objects else (None, None)
    return {"object": "list", "data": objects, "first_id": first, "last_id": last, "has_more": more}


async def retrieve(request: Request) -> Response:
    """``GET /v1/files/{id}``."""
    _, store, tenant = kept(request)
    id = request.path_params["id"]
    row = await store.database.read(lambda db: files.find(db, tenant, id))
    return answer(row.object)


async def content(request: Request) -> Response:
    """``GET /v1/files/{id}/content``."""
    service, store, tenant = kept(request)
    id = request.path_params["id"]
    row = await store.database.read(lambda db: files.find(db, tenant, id))
    return Download(service, store, row)


async def delete(request: Request) -> Response:
    """``DELETE /v1/files/{id}``."""
    _, store, tenant = kept(request)
    id = request.path_params["id"]
    await store.database.write_at_last(lambda db: batches.remove_file(db, tenant, id))
    return answer({"id": id, "object": "file", "deleted": True})


class Download(Response):
    """A file, read and sent piece by piece; a client that takes nothing for too long is dropped."""

    def __init__(self, service: Service, store: Store, row: FileRow) -> None:
        super().__init__(media_type="application/octet-stream")
        self.headers["Content-Length"] = str(row.bytes)
        name = row.filename.encode("ascii", "replace").decode().replace('"', "'").replace("\\", "'")
        self.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        self.headers["X-Content-Type-Options"] = "nosniff"
        self._service = service
        self._store = store
        self._row = row

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_client, receive, tasks.cancel_scope)
            await self._send(send)
            tasks.cancel_scope.cancel()

    async def _watch_client(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._service.metrics.count("disconnected")
        scope.cancel()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        place, left = 0, self._row.bytes
        while place >= 0:
            data, place = await self._store.database.read(files.piece(self._row, place)) if left else (b"", -1)
            left -= len(data)
            with anyio.move_on_after(self._service.limits.send_timeout_s) as patience:
                await send({"type": "http.response.body", "body": data, "more_body": left > 0})
            if patience.cancelled_caught:
                self._service.metrics.count("slow_client")
                return
            if not left:
                return


FILES = [
    Route("/v1/files", upload, methods=["POST"]),
    Route("/v1/files", listed, methods=["GET"]),
    Route("/v1/files/{id}", retrieve, methods=["GET"]),
    Route("/v1/files/{id}", delete, methods=["DELETE"]),
    Route("/v1/files/{id}/content", content, methods=["GET"]),
]
