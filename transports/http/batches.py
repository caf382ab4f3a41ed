"""``/v1/batches`` in OpenAI's shapes: create, look, list, cancel.  What runs them is ``transports/batches``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepwell.core.config import class_of
from stepwell.core.config_store import window_s
from stepwell.transports.batches.asking import Asking
from stepwell.transports.batches.runner import Runner
from stepwell.transports.errors import RequestError
from stepwell.transports.http.body import read_body
from stepwell.transports.http.decoding import decode_body
from stepwell.transports.http.files import LEAST_S, MOST_S, answer, kept, limit_of, page_of
from stepwell.transports.service import Service
from stepwell.transports.store import batches
from stepwell.transports.store.batches import NewBatch

MOST_LISTED, LISTED = 100, 20

_Key = Annotated[str, msgspec.Meta(max_length=64)]
_Value = Annotated[str, msgspec.Meta(max_length=512)]
Metadata = Annotated[dict[_Key, _Value], msgspec.Meta(max_length=16)]
Label = Annotated[str, msgspec.Meta(max_length=128)]


class Expiry(msgspec.Struct):
    """Of the files that a batch makes."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, msgspec.Meta(ge=LEAST_S, le=MOST_S)]


class CreateBatch(msgspec.Struct):
    """``POST /v1/batches``."""

    input_file_id: Label
    endpoint: Label
    completion_window: Label
    metadata: Metadata | None = None
    output_expires_after: Expiry | None = None


_CREATE = msgspec.json.Decoder(CreateBatch)


def runner_of(app: Starlette, service: Service) -> Runner | None:
    """Runs the batches of the service's store, if it has one."""
    if service.store is None:
        return None
    klass = class_of(service.config, service.config.store.batch_class)
    runner = Runner(service, service.store, Asking(app, service, klass))
    service.metrics.batches = runner.tally
    return runner


def _runner(request: Request) -> Runner:
    """There is one where there is a store."""
    return cast(Runner, request.app.state.batches)


async def create(request: Request) -> Response:
    """``POST /v1/batches``."""
    service, store, tenant = kept(request)
    service.check_taking()
    # Lines are run when no key is shown any more.
    service.wire.check_later(request.headers, class_of(service.config, service.config.store.batch_class))
    asked = await decode_body(await read_body(request), _CREATE)
    runner, windows = _runner(request), store.limits.windows
    if asked.endpoint not in runner.endpoints:
        raise RequestError(f"must be one of {', '.join(runner.endpoints)}", field="endpoint")
    if asked.completion_window not in windows:
        raise RequestError(f"must be one of {', '.join(windows)}", field="completion_window")
    new = NewBatch(
        endpoint=asked.endpoint,
        input_file_id=asked.input_file_id,
        completion_window=asked.completion_window,
        window_s=window_s(asked.completion_window),
        metadata=asked.metadata,
        output_seconds=asked.output_expires_after.seconds if asked.output_expires_after else None,
    )
    now, most = store.now(), store.limits.tenant_batches
    row = await store.database.write(lambda db: batches.create(db, tenant, new, now, most))
    runner.begin(row)
    return answer(row.object)


async def listed(request: Request) -> Response:
    """``GET /v1/batches``."""
    _, store, tenant = kept(request)
    after, limit = request.query_params.get("after", ""), limit_of(request, MOST_LISTED, LISTED)

    def work(db: Any) -> bytes:
        rows, more = batches.listed(db, tenant, after, limit)
        return msgspec.json.encode(page_of([row.object for row in rows], more))

    return Response(await store.database.read(work), media_type="application/json")


async def retrieve(request: Request) -> Response:
    """``GET /v1/batches/{id}``."""
    _, store, tenant = kept(request)
    id = request.path_params["id"]
    row = await store.database.read(lambda db: batches.find(db, tenant, id))
    return answer(row.object)


async def cancel(request: Request) -> Response:
    """``POST /v1/batches/{id}/cancel``."""
    _, store, tenant = kept(request)
    id, now = request.path_params["id"], store.now()
    row = await store.database.write_at_last(lambda db: batches.cancel(db, tenant, id, now))
    if row.status == "cancelling":
        _runner(request).cancel(row.number)
    return answer(row.object)


BATCHES = [
    Route("/v1/batches", create, methods=["POST"]),
    Route("/v1/batches", listed, methods=["GET"]),
    Route("/v1/batches/{id}", retrieve, methods=["GET"]),
    Route("/v1/batches/{id}/cancel", cancel, methods=["POST"]),
]
