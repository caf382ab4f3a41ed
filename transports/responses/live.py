"""A response on its way: it begins, is told of by events, and ends once, whoever reads it and however often.

It needs no task of its own.  News of the engine call ``ring``, which wakes the readers; whoever reads turns what is new
into events first (asking late gives fewer and longer pieces), and the end does so by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from stepwell.core.errors import StepwellError
from stepwell.core.execution import PromptIds
from stepwell.core.parsing import Content
from stepwell.core.types import RequestId
from stepwell.transports.bell import Bell
from stepwell.transports.chat import Message
from stepwell.transports.errors import RequestError
from stepwell.transports.generation import Choice, Generation
from stepwell.transports.herald import Herald
from stepwell.transports.http.usage import reasoning_tokens
from stepwell.transports.outlet import Outlet
from stepwell.transports.responses.answer import Answer, Json
from stepwell.transports.responses.create import Order
from stepwell.transports.responses.items import InputItem, chat_of, stored
from stepwell.transports.responses.tools import tell
from stepwell.transports.service import Service

LIGHT = 16 << 10


class Keeper(Protocol):
    """Who looks after responses."""

    async def conversation(self, order: Order) -> list[InputItem]:
        """What was said before; raises ``RequestError`` if that is not known."""
        ...

    def began(self, live: Live) -> None:
        """It is in line."""
        ...

    def admitted(self, live: Live) -> None:
        """It waits no more."""
        ...

    def ended(self, live: Live) -> None:
        """Once."""
        ...


class Live:
    """One response.  ``begin`` must return before anything else is asked of it, but for ``cancel``."""

    def __init__(self, service: Service, order: Order, keeper: Keeper, most_events: int) -> None:
        self.order = order
        self.tenant = order.tenant
        self.previous = order.previous
        self.answer = Answer(service.model.name, order.told, most_events)
        self.input = b""
        """The items of this turn as JSON, if it is stored."""
        self.generation: Generation | None = None
        """None before it is in line, and once it is over."""
        self.hold_s = 0.0
        self._service = service
        self._keeper = keeper
        self._readers: list[Reader] = []
        self._cancelled = False
        self._begun = False
        self._pauses = 0
        self._paused = False
        self._holding: asyncio.TimerHandle | None = None
        self.told_size = len(msgspec.json.encode(order.told))
        """Bytes of what the response object tells back, which many of its events hold."""
        self.failure: StepwellError | None = None
        """Why it failed."""

    @property
    def id(self) -> str:
        return self.answer.id

    @property
    def over(self) -> bool:
        return self.answer.over

    def response(self) -> Json:
        """The response object as it is now."""
        self.pull()
        return self.answer.response()

    @property
    def light(self) -> bool:
        """Its events are small enough to be told now and then."""
        return self.told_size <= LIGHT

    @property
    def request(self) -> RequestId:
        """The engine's number of it; 0 before it is in line, and once it is over."""
        return self.generation.choices[0].stream.request if self.generation is not None else 0

    # ------------------------------------------------------------------------------------------- life

    async def begin(self) -> None:
        """Into the line; raises what it is refused for."""
        service, order = self._service, self.order
        before = await self._keeper.conversation(order)
        if order.store:
            self.input = stored(order.items)
        with service.stopping.given_up():
            prompt = await self._prompt([*before, *order.items])
            keys = await service.keys([prompt], order.tenant, order.wants.cache_salt)
            sampling = await service.structured.ready(order.wants.sampling, order.wants.grammar_field)
        generation = service.start([prompt], msgspec.structs.replace(order.wants, sampling=sampling), keys)
        order.forget()
        try:
            if self._cancelled:
                generation.cancel()
            await generation.accepted()
        except BaseException:
            generation.close()
            raise
        self.generation = generation
        answer = self.answer
        answer.requests = service.names.told([generation.choices[0].stream.request])
        admitted = generation.choices[0].admitted
        answer.status = "in_progress" if admitted else "queued"
        answer.tell("response.created")
        self._keeper.began(self)
        generation.rings(self.ring)
        self.ring()

    async def _prompt(self, items: Sequence[InputItem]) -> PromptIds:
        order, prompts = self.order, self._service.prompts
        told = order.told["instructions"]
        first: list[Message] = [{"role": "system", "content": told}] if told else []
        said = chat_of(items)

        def without(dropped: int) -> Awaitable[PromptIds]:
            messages: Sequence[Message] = [*first, *said[dropped:]]
            if order.offer is not None:
                messages = order.offer.told(messages, self._service.parsers)
            return prompts.chat(messages, order.arguments, "input")

        return await _shortest(without, len(said) - 1 if order.drop_old else 0)

    def cancel(self) -> None:
        """Not wanted any more.  Harmless if it is over."""
        self._cancelled = True
        if self.generation is not None:
            self.generation.cancel()

    def queued(self, position: int, wait_ms: int) -> None:
        """It waits, at that place."""
        if not self.over and not self._begun:
            self.answer.tell("response.queued", queue_position=position, estimated_wait_ms=wait_ms)
            self._wake()

    def ring(self) -> None:
        """There is news of the engine."""
        generation = self.generation
        if generation is not None and (generation.choices[0].over or not self._begun):
            self.pull()
        self._wake()

    def _wake(self) -> None:
        for reader in self._readers:
            reader.ring()

    def _drop(self) -> None:
        """More waits to be read than may: nobody who should have read it did."""
        for reader in list(self._readers):
            reader.drop()

    # ------------------------------------------------------------------------------------------- events

    def pull(self) -> None:
        """Turn what is new into events."""
        generation = self.generation
        if generation is None:
            return
        choice, answer = generation.choices[0], self.answer
        if choice.admitted and not self._begun:
            self._begun = True
            self._keeper.admitted(self)
            answer.status = "in_progress"
            answer.tell("response.in_progress")
        if self.order.scheduling:
            self._tell_pauses(choice)
        text, start, stop = choice.take()
        if self.generation is None:  # its text cannot be made, which ended it
            return
        rows = self._rows(choice, start, stop) if choice.logprobs else []
        if choice.reading is not None:
            tell(answer, choice.reading.take(), rows)
        elif rows or (text and not answer.goes_on(text)):
            tell(answer, (Content(text),), rows)
        if choice.error is not None:
            self._failed(generation, choice.error)
        elif choice.reason:
            self._ended(generation, choice)

    def _tell_pauses(self, choice: Choice) -> None:
        answer = self.answer
        if choice.preemptions > self._pauses or (choice.paused and not self._paused):
            self._pauses, self._paused = choice.preemptions, True
            answer.tell("response.paused", reason=choice.paused_for, preemptions=choice.preemptions)
        if self._paused and not choice.paused:
            self._paused = False
            answer.tell("response.resumed", preemptions=choice.preemptions)

    def _rows(self, choice: Choice, start: int, stop: int) -> list[Json]:
        if choice.silent:
            return []
        tokenizer = self._service.model.tokenizer
        made = []
        for id, row in zip(choice.stream.tokens[start:stop], choice.logprobs[start:stop], strict=False):
            if id not in tokenizer.end_tokens:
                best = [self._row(other, value) for other, value in row.top]
                made.append({**self._row(id, row.logprob), "top_logprobs": best})
        return made

    def _row(self, id: int, logprob: float) -> Json:
        data = self._service.model.tokenizer.token_bytes(id)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    def _ended(self, generation: Generation, choice: Choice) -> None:
        answer, usage = self.answer, _usage(generation)
        complete = choice.reason == "stop" or (choice.silent and choice.reason == "length")
        if self._begun and not answer.items and not choice.silent:
            answer.open("message")
        if complete:
            answer.end("response.completed", "completed", usage)
        else:
            cancelled = choice.reason == "cancelled"
            answer.end("response.incomplete", "cancelled" if cancelled else "incomplete", usage)
        self._settle(generation)

    def _failed(self, generation: Generation, error: StepwellError) -> None:
        refusal = self._service.refusal(error)
        told = {"code": refusal.code, "message": refusal.message}
        self.answer.end("response.failed", "failed", _usage(generation), told)
        self._settle(generation)

    def _settle(self, generation: Generation) -> None:
        self.failure = generation.error
        self.generation = None
        self._hold_no_more()
        generation.close()
        if not self._begun:
            self._keeper.admitted(self)
        self._keeper.ended(self)

    # ------------------------------------------------------------------------------------------- readers

    def read(self, after: int = -1) -> Reader:
        """Events from the one behind ``after`` on; the reader says when it leaves."""
        self._hold_no_more()
        reader = Reader(self, after + 1)
        self._readers.append(reader)
        return reader

    def bound(self, most_letters: int) -> None:
        """Drop all who read if more letters than that wait to be read."""
        if self.generation is not None:
            self.generation.most_untaken, self.generation.overflow = most_letters, self._drop

    def left(self, reader: Reader) -> None:
        """A reader is gone: if it was the last, and nobody will come back, nothing more is wanted."""
        if reader not in self._readers:
            return
        self._readers.remove(reader)
        if self.over or self._readers or self.order.background:
            return
        if self.order.hold and self.hold_s > 0:
            self._holding = asyncio.get_running_loop().call_later(self.hold_s, self.cancel)
        else:
            self.cancel()

    def _hold_no_more(self) -> None:
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None

    async def finished(self) -> None:
        """Wait until it is over; tokens wake nobody who waits here."""
        if self.generation is not None:
            with contextlib.suppress(StepwellError):  # told by ``failure``
                await self.generation.finished()
            self.pull()


class Reader:
    """Reads the events of a response, one after another, as far as they are there."""

    drop: Callable[[], None]
    """It takes too little: whoever reads is to be dropped."""
    ring: Callable[[], None]
    """There may be more, or something else to be done."""

    def __init__(self, live: Live, number: int) -> None:
        self._live = live
        self._number = number
        self.drop = _nobody
        self._use(Bell())

    @property
    def over(self) -> bool:
        """Everything was read."""
        return self._live.over and self._number >= self._live.answer.log.end

    def events(self, lane: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Type and JSON of what there is now.  Raises ``RequestError`` if the reader is too slow for what is kept."""
        live = self._live
        answer = live.answer
        log = answer.log
        if self._number == log.end:
            live.pull()
        end = log.end
        while self._number < end:
            told = answer.encoded(self._number, lane)
            self._number += 1
            yield told

    async def news(self) -> None:
        """Wait until there may be more, for the task that reads.  Raises what ``say`` raised (``straight``)."""
        await self._bell.heard()

    def straight(self, outlet: Outlet, say: Callable[[], bool]) -> None:
        """From now on news go to ``say`` while nobody is needed for them (``Herald``); before the first ``news``."""
        self._use(Herald(outlet, say))

    def _use(self, bell: Bell | Herald) -> None:
        self._bell = bell
        self.ring = bell.ring

    @property
    def ending(self) -> bool:
        """The last event is there, read or not."""
        return self._live.over

    def dropped_by(self, drop: Callable[[], None], most_letters: int) -> None:
        """Call ``drop`` if more letters than that wait to be read."""
        self.drop = drop
        self._live.bound(most_letters)

    def leave(self) -> None:
        """Harmless the second time."""
        self._use(Bell())  # the other one knows who reads, as ``drop`` does
        self.drop = _nobody
        self._live.left(self)


def _nobody() -> None:
    """Nobody reads."""


async def _shortest(make: Callable[[int], Awaitable[PromptIds]], most: int) -> PromptIds:
    """What ``make`` gives for the smallest number up to ``most`` for which it is not too long, found by halving."""
    try:
        return await make(0)
    except RequestError as error:
        if error.code != "context_length_exceeded" or not most:
            raise
    low, high, found = 1, most, await make(most)
    while low < high:
        middle = (low + high) // 2
        try:
            found, high = await make(middle), middle
        except RequestError:
            low = middle + 1
    return found


def _usage(generation: Generation) -> dict[str, Any]:
    prompt, completion, cached = generation.usage
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens(generation)},
        "total_tokens": prompt + completion,
    }
