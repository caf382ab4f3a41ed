"""From an accepted request to the answer over HTTP, whatever shape it has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stepwell.transports.errors import RequestError
from stepwell.transports.generation import MAX_NAMED, Generation
from stepwell.transports.http.body import body_done, request_id
from stepwell.transports.http.sse import Dialect, EventStream, unless_gone
from stepwell.transports.service import Service
from stepwell.transports.wants import Wants

ENGINE_ID = "X-Stepwell-Request"
"""The header that says under which numbers the journal has it."""


class Shape(Protocol):
    """Puts an answer into a client's words.  Lives as long as the answer, so it holds on to nothing of the body."""

    @property
    def dialect(self) -> Dialect: ...
    @property
    def prepares(self) -> bool:
        """Whether ``prepare`` has anything to do."""
        ...

    async def prepare(self, generation: Generation) -> None:
        """Make what takes long, as far as it is known, before ``events`` or ``answer`` is called."""

    def events(self, generation: Generation) -> bytes:
        """What is new, framed."""
        ...

    def closing(self, generation: Generation) -> bytes:
        """What is said last, framed."""
        ...

    def answer(self, generation: Generation) -> object:
        """All of it, unstreamed."""
        ...


def check_model(service: Service, name: str | None) -> None:
    """Whoever names a model must mean this one."""
    if name and name != service.model.name:
        raise RequestError(
            f"there is no model {name[:100]!r} here; this server has {service.model.name!r}",
            field="model",
            status=404,
            code="model_not_found",
        )


async def accepted(service: Service, prompts: Sequence[list[int]], wants: Wants, *, timed: bool = False) -> Generation:
    """In line; whatever the scheduler refuses is refused before the answer's status is sent."""
    service.check_taking()
    sampling = await service.structured.ready(wants.sampling, wants.grammar_field)
    wants = msgspec.structs.replace(wants, sampling=sampling)
    keys = await service.keys(prompts, wants.standing.tenant, wants.cache_salt)
    generation = service.start(prompts, wants, keys)
    if timed:
        generation.times = [service.times.watch(choice.stream.request) for choice in generation.choices]
    try:
        await generation.accepted()
    except BaseException:
        generation.close()
        raise
    return generation


Begin = Callable[[], Awaitable[tuple[Generation, Shape]]]


async def respond(request: Request, service: Service, stream: bool, begin: Begin, name: str | None = None) -> Response:
    """Begin, and answer: in pieces or in one.  ``name``: what the answer's header calls it."""
    headers: dict[str, str] = {"X-Request-Id": request_id(request, name)}
    if stream:
        generation, shape = await unless_gone(request, service, begin)
        body_done(request)
        headers[ENGINE_ID] = told_as(service, generation)
        prepare = shape.prepare if shape.prepares else None
        return EventStream(service, generation, shape.events, shape.closing, headers, prepare, shape.dialect)

    async def whole() -> bytes:
        generation, shape = await begin()
        body_done(request)
        headers[ENGINE_ID] = told_as(service, generation)
        try:
            await generation.finished()
            if shape.prepares:
                await shape.prepare(generation)
            return msgspec.json.encode(shape.answer(generation))
        finally:
            generation.close()

    body = await unless_gone(request, service, whole)
    return Response(body, media_type="application/json", headers=headers)


def told_as(service: Service, generation: Generation) -> str:
    """What its client is told of the numbers of its requests."""
    return service.names.told(choice.stream.request for choice in generation.choices[:MAX_NAMED])
