"""``/v1/chat/completions`` and ``/v1/completions`` in OpenAI's shapes, streamed and not."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from stepwell.core.errors import UserError
from stepwell.transports.errors import RequestError
from stepwell.transports.generation import Choice, Generation
from stepwell.transports.http import requests, sse
from stepwell.transports.http.body import read_body, request_id, service_of
from stepwell.transports.http.columns import Columns, columns, columns_of_prompt
from stepwell.transports.http.decoding import decode_body
from stepwell.transports.http.requests import CompletionRequest, Sampled
from stepwell.transports.http.sse import EventStream, unless_gone
from stepwell.transports.service import Service, Wants

Json = dict[str, Any]
Logprobs = Json | Raw

ECHO_LOGPROBS = 5
"""The best tokens in each place of a prompt, at most."""
ECHO_ROWS = 1 << 18
"""Log-probabilities of prompts in one answer, at most: of each choice's prompt, each token's own and the best."""
ENGINE_ID = "X-Stepwell-Request"
"""The header that says under which numbers the journal has it."""

_PLACE = "\x00text\x00"
_encode = msgspec.json.Encoder().encode
_PLACED = _encode(_PLACE)


def usage_of(generation: Generation) -> Json:
    """Once a request, however many choices it has."""
    prompt, completion, cached = generation.usage
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


class _Shape:
    """One answer in the making: which frame its choices go into.  Chat and text completions differ in three places.

    It lives as long as the answer, and so keeps nothing of the request that could hold on to the whole body.
    """

    prefix: str
    whole: str
    piece: str

    def __init__(self, service: Service, request: Sampled, tier: str = "default") -> None:
        self.service = service
        self._tier = tier if request.service_tier is not None else None
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        options = request.stream_options
        self.with_usage = bool(request.stream and options and options.include_usage)
        self.running_usage = bool(self.with_usage and options and options.continuous_usage_stats)
        self._frames: dict[int, tuple[bytes, bytes]] = {}
        self._greeted: set[int] = set()
        self._ended: set[int] = set()

    # ---- the three places

    async def prepare(self, generation: Generation) -> None:
        """Make what takes long, as far as it is known, before ``events`` or ``answer`` is called."""

    def begins(self, choice: Choice) -> bool:
        """Whether what it begins with is made."""
        return True

    def opening(self, choice: Choice) -> list[tuple[Json, Logprobs | None]]:
        """What a choice begins with, and its log-probabilities."""
        return []

    def delta(self, text: str) -> Json:
        raise NotImplementedError

    def last_delta(self) -> Json:
        raise NotImplementedError

    def message(self, choice: Choice) -> Json:
        raise NotImplementedError

    def logprobs(self, choice: Choice, start: int, stop: int) -> Json | None:
        raise NotImplementedError

    # ---- frames

    def frame(self, kind: str, choices: list[Json]) -> Json:
        made = {"id": self.id, "object": kind, "created": self.created, "model": self.service.model.name}
        if self._tier is not None:
            made["service_tier"] = self._tier
        return {**made, "choices": choices}

    def events(self, generation: Generation) -> bytes:
        """What is new, framed: text of every choice that has some, and its end once."""
        frames: list[bytes] = []
        for choice in generation.choices:
            self._news(generation, choice, frames)
        return b"".join(frames)

    def _news(self, generation: Generation, choice: Choice, frames: list[bytes]) -> None:
        index = choice.index
        if index not in self._greeted:
            if not self.begins(choice):
                return
            self._greeted.add(index)
            for body, of in self.opening(choice):
                frames.append(sse.data(self._chunk(generation, index, body, None, of)))
        text, start, stop = choice.take()
        logprobs = self.logprobs(choice, start, stop) if choice.logprobs and stop > start else None
        if logprobs is not None or self.running_usage:
            if text or logprobs:
                frames.append(sse.data(self._chunk(generation, index, self.delta(text), None, logprobs)))
        elif text:
            before, after = self._frames.get(index) or self._frame_of(generation, index)
            frames += (before, _encode(text), after)
        if choice.reason and index not in self._ended:
            self._ended.add(index)
            frames.append(sse.data(self._chunk(generation, index, self.last_delta(), choice.reason)))

    def _frame_of(self, generation: Generation, index: int) -> tuple[bytes, bytes]:
        """What stands around the text of a choice's chunks: the same every time, so it is encoded once."""
        before, _, after = sse.data(self._chunk(generation, index, self.delta(_PLACE), None)).partition(_PLACED)
        self._frames[index] = before, after
        return before, after

    def _chunk(
        self, generation: Generation, index: int, body: Json, reason: str | None, logprobs: Logprobs | None = None
    ) -> Json:
        choice = {"index": index, **body, "logprobs": logprobs, "finish_reason": reason}
        made = self.frame(self.piece, [choice])
        if self.with_usage:
            made["usage"] = usage_of(generation) if self.running_usage else None
        return made

    def closing(self, generation: Generation) -> bytes:
        if not self.with_usage:
            return b""
        return sse.data({**self.frame(self.piece, []), "usage": usage_of(generation)})

    def answer(self, generation: Generation) -> Json:
        choices = []
        for choice in generation.choices:
            _, start, stop = choice.take()
            ended = {"logprobs": self.all_logprobs(choice, start, stop), "finish_reason": choice.reason}
            choices.append({"index": choice.index, **self.message(choice), **ended})
        return {**self.frame(self.whole, choices), "usage": usage_of(generation)}

    # ---- log-probabilities

    def all_logprobs(self, choice: Choice, start: int, stop: int) -> Logprobs | None:
        """Of an answer in one piece."""
        return self.logprobs(choice, start, stop)

    def token(self, id: int) -> str:
        return self.service.model.tokenizer.token_bytes(id).decode("utf-8", "replace")

    def rows(self, choice: Choice, start: int, stop: int) -> Iterator[tuple[int, float, Sequence[tuple[int, float]]]]:
        """Of the tokens that are shown: the end token is none of the answer's text."""
        given = choice.logprobs[start:stop]
        ends = self.service.model.tokenizer.end_tokens
        for id, row in zip(choice.stream.tokens[start:stop], given, strict=False):
            if id not in ends:
                yield id, row.logprob, row.top


class ChatShape(_Shape):
    """Of ``ChatRequest``."""

    prefix, whole, piece = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self, choice: Choice) -> list[tuple[Json, Logprobs | None]]:
        return [({"delta": {"role": "assistant", "content": ""}}, None)]

    def delta(self, text: str) -> Json:
        return {"delta": {"content": text}}

    def last_delta(self) -> Json:
        return {"delta": {}}

    def message(self, choice: Choice) -> Json:
        return {"message": {"role": "assistant", "content": choice.text, "refusal": None}}

    def logprobs(self, choice: Choice, start: int, stop: int) -> Json | None:
        if not choice.logprobs:
            return None
        content = []
        for id, logprob, top in self.rows(choice, start, stop):
            best = [self._entry(other, value) for other, value in top]
            content.append({**self._entry(id, logprob), "top_logprobs": best})
        return {"content": content, "refusal": None}

    def _entry(self, id: int, logprob: float) -> Json:
        data = self.service.model.tokenizer.token_bytes(id)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}


class CompletionShape(_Shape):
    """Of ``CompletionRequest``.  ``echoes`` are the prompts' texts, if they are to be said first: with their own
    log-probabilities, if any are asked for."""

    prefix, whole, piece = "cmpl", "text_completion", "text_completion"

    def __init__(
        self, service: Service, request: CompletionRequest, echoes: Sequence[str] = (), tier: str = "default"
    ) -> None:
        super().__init__(service, request, tier)
        self._echoes = echoes
        self._n = request.n or 1
        self._of_prompt = bool(echoes) and request.logprobs is not None and request.logprobs is not False
        self._offsets: dict[int, int] = {}
        self._prompts: dict[int, Columns] = {}
        """By prompt: the rows of its tokens."""

    def _echo(self, index: int) -> str:
        return self._echoes[index // self._n] if self._echoes else ""

    async def prepare(self, generation: Generation) -> None:
        if not self._of_prompt:
            return
        firsts = generation.choices[:: self._n]
        while known := [place for place, first in enumerate(firsts) if place not in self._prompts and _knows(first)]:
            first = firsts[known[0]]
            self._prompts[known[0]] = await columns_of_prompt(first.prompt, first.stream.prompt_logprobs, self.token)

    def begins(self, choice: Choice) -> bool:
        return not self._of_prompt or choice.index // self._n in self._prompts

    def opening(self, choice: Choice) -> list[tuple[Json, Logprobs | None]]:
        if not self._echoes:
            return []
        mine = self._prompts.get(choice.index // self._n)
        return [({"text": self._echo(choice.index)}, mine.raw() if mine else None)]

    def delta(self, text: str) -> Json:
        return {"text": text}

    def last_delta(self) -> Json:
        return {"text": ""}

    def message(self, choice: Choice) -> Json:
        return {"text": self._echo(choice.index) + choice.text}

    def logprobs(self, choice: Choice, start: int, stop: int) -> Json | None:
        if not choice.logprobs:
            return None
        offset = self._offsets.get(choice.index, len(self._echo(choice.index)))
        made, self._offsets[choice.index] = columns(self.rows(choice, start, stop), offset, self.token)
        return made

    def all_logprobs(self, choice: Choice, start: int, stop: int) -> Logprobs | None:
        mine, answer = self._prompts.get(choice.index // self._n), self.logprobs(choice, start, stop)
        return answer if mine is None else mine.raw(answer)


def _knows(choice: Choice) -> bool:
    """Whether all that there will be of its prompt's log-probabilities is there."""
    known = len(choice.stream.prompt_logprobs) + 1 >= len(choice.prompt)
    return known or bool(choice.stream.tokens) or choice.over


# ------------------------------------------------------------------------------------------------ endpoints


def check_model(service: Service, name: str | None) -> None:
    """Whoever names a model must mean this one."""
    if name and name != service.model.name:
        raise RequestError(
            f"there is no model {name[:100]!r} here; this server has {service.model.name!r}",
            field="model",
            status=404,
            code="model_not_found",
        )


async def chat(request: Request) -> Response:
    """``POST /v1/chat/completions``."""
    service = service_of(request)
    asked = await decode_body(await read_body(request), requests.CHAT)
    check_model(service, asked.model)
    requests.check_promises(asked)
    limit = "max_tokens" if asked.max_completion_tokens is None else "max_completion_tokens"
    if asked.top_logprobs and not asked.logprobs:
        raise UserError("needs logprobs to be true", field="top_logprobs")
    logprobs = (asked.top_logprobs or 0) if asked.logprobs else -1
    wants = requests.wants_of(asked, service, request.headers, logprobs=logprobs, limit=limit)
    messages = requests.messages_of(requests.chat_messages(asked.messages))

    async def begin() -> tuple[Generation, _Shape]:
        prompt = await service.prompts.chat(messages, asked.chat_template_kwargs or {}, "messages")
        return await _accepted(service, [prompt], wants), ChatShape(service, asked, wants.standing.tier)

    return await _answer(request, service, asked, begin)


async def completions(request: Request) -> Response:
    """``POST /v1/completions``."""
    service = service_of(request)
    asked = await decode_body(await read_body(request), requests.COMPLETION)
    check_model(service, asked.model)
    if asked.suffix:
        raise UserError("filling in the middle is not supported", field="suffix")
    logprobs = -1 if asked.logprobs is None or asked.logprobs is False else int(asked.logprobs)
    if asked.echo and logprobs > ECHO_LOGPROBS:
        raise UserError(f"with echo at most {ECHO_LOGPROBS}, got {logprobs}", field="logprobs")
    wants = requests.wants_of(asked, service, request.headers, logprobs=logprobs, least=0 if asked.echo else 1)
    replace = msgspec.structs.replace
    if asked.echo:
        answer = logprobs if wants.max_tokens != 0 else -1
        wants = replace(wants, sampling=replace(wants.sampling, prompt_logprobs=logprobs, logprobs=answer))
    wants = replace(wants, opening="continuation")

    async def begin() -> tuple[Generation, _Shape]:
        prompts = await requests.prompts_of(asked.prompt, service)
        if len(prompts) * wants.n > service.limits.max_choices:
            raise UserError(f"n times the prompts is at most {service.limits.max_choices} here", field="n")
        rows = sum(map(len, prompts)) * wants.n * (1 + wants.sampling.prompt_logprobs)
        if rows > ECHO_ROWS:
            raise UserError(f"tokens of the prompts, times n, times 1 + this: at most {ECHO_ROWS}", field="logprobs")
        echoes = await _texts(service, prompts) if asked.echo else []
        return await _accepted(service, prompts, wants), CompletionShape(service, asked, echoes, wants.standing.tier)

    return await _answer(request, service, asked, begin)


async def _texts(service: Service, prompts: Sequence[list[int]]) -> list[str]:
    decode = service.model.tokenizer.decode

    def make() -> list[str]:
        return [decode(prompt).decode("utf-8", "replace") for prompt in prompts]

    return await service.aside.unless_short(sum(map(len, prompts)), make)


async def _accepted(service: Service, prompts: Sequence[list[int]], wants: Wants) -> Generation:
    """In line; whatever the scheduler refuses is refused before the answer's status is sent."""
    service.check_taking()
    generation = service.start(prompts, wants, await service.keys(prompts, wants.standing.tenant))
    try:
        await generation.accepted()
    except BaseException:
        generation.close()
        raise
    return generation


async def _answer(
    request: Request, service: Service, asked: Sampled, begin: Callable[[], Awaitable[tuple[Generation, _Shape]]]
) -> Response:
    headers: dict[str, str] = {"X-Request-Id": request_id(request)}
    if asked.stream:
        generation, shape = await unless_gone(request, service, begin)
        headers[ENGINE_ID] = generation.requests
        prepare = shape.prepare if isinstance(shape, CompletionShape) else None
        return EventStream(service, generation, shape.events, shape.closing, headers, prepare)

    async def whole() -> bytes:
        generation, shape = await begin()
        headers[ENGINE_ID] = generation.requests
        try:
            await generation.finished()
            await shape.prepare(generation)
            return msgspec.json.encode(shape.answer(generation))
        finally:
            generation.close()

    body = await unless_gone(request, service, whole)
    return Response(body, media_type="application/json", headers=headers)
