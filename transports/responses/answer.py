"""One answer in the making: its output items, the response object that holds them, and the events that tell of both."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stepwell.transports.responses.items import PREFIXES, new_id
from stepwell.transports.responses.log import Entry, EventLog

Json = dict[str, Any]
ENDS = ("response.completed", "response.incomplete", "response.failed")
DELTAS = {
    "message": "response.output_text.delta",
    "function_call": "response.function_call_arguments.delta",
    "reasoning": "response.reasoning_text.delta",
}
_ITEM_OF = {kind: item for item, kind in DELTAS.items()}
_DONE = {item: kind.replace(".delta", ".done") for item, kind in DELTAS.items()}
_PLACE = "\x00here\x00"
_encode = msgspec.json.Encoder().encode
_PLACED = _encode(_PLACE)


class Item(msgspec.Struct):
    """One of ``output``."""

    type: str
    id: str
    name: str = ""
    call_id: str = ""
    pieces: list[str] = msgspec.field(default_factory=list)
    logprobs: list[Json] = msgspec.field(default_factory=list)
    status: str = "in_progress"

    @property
    def text(self) -> str:
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""

    def part(self, empty: bool = False) -> Json:
        text = "" if empty else self.text
        if self.type == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": [] if empty else self.logprobs}

    def shown(self, empty: bool = False) -> Json:
        """As in ``output``; ``empty``: as it begins."""
        made: Json = {"id": self.id, "type": self.type, "status": "in_progress" if empty else self.status}
        if self.type == "function_call":
            return {**made, "call_id": self.call_id, "name": self.name, "arguments": "" if empty else self.text}
        content = [] if empty else [self.part()]
        if self.type == "reasoning":
            return {**made, "summary": [], "content": content}
        return {**made, "role": "assistant", "content": content}


class Answer:
    """Grows by ``open``, ``say``, ``close`` and ``end``, each of which is told by events in ``log``."""

    def __init__(self, model: str, told: Json, most_events: int) -> None:
        self.id = new_id("resp")
        self.created_at = int(time.time())
        self.completed_at: int | None = None
        self.status = "queued"
        self.error: Json | None = None
        self.usage: Json | None = None
        self.items: list[Item] = []
        self.log = EventLog(most_events)
        self.requests = ""
        """Under which numbers the journal has it."""
        self._model = model
        self._told = told
        self._frames: dict[tuple[int, str | None], tuple[bytes, bytes, bytes]] = {}

    @property
    def over(self) -> bool:
        return self.status not in ("queued", "in_progress")

    # ------------------------------------------------------------------------------------------- it grows

    def tell(self, kind: str, **fields: Any) -> None:
        """Of the response as a whole; ``fields`` are the event's own."""
        self.log.add(Entry(kind, 0, {"status": self.status, **fields}))

    def open(self, type: str, name: str = "", call_id: str = "") -> None:
        """The next item begins."""
        self.items.append(Item(type, new_id(PREFIXES[type]), name, call_id))
        index = len(self.items) - 1
        self.log.add(Entry("response.output_item.added", index))
        if type != "function_call":
            self.log.add(Entry("response.content_part.added", index))

    def say(self, text: str, rows: Sequence[Json] = ()) -> None:
        """More of the last item, and the log-probabilities of its tokens."""
        item = self.items[-1]
        item.pieces.append(text)
        item.logprobs += rows
        self.log.add(Entry(DELTAS[item.type], len(self.items) - 1, (text, list(rows)) if rows else text))

    def goes_on(self, text: str) -> bool:
        """More of the message that is being said; False if there is none."""
        if not self.items:
            return False
        item = self.items[-1]
        if item.type != "message" or item.status != "in_progress":
            return False
        item.pieces.append(text)
        self.log.add_text(DELTAS["message"], len(self.items) - 1, text)
        return True

    def close(self, complete: bool = True) -> None:
        """The last item is over, if there is one that is not."""
        if not self.items or self.items[-1].status != "in_progress":
            return
        item, index = self.items[-1], len(self.items) - 1
        item.status = "completed" if complete else "incomplete"
        self.log.add(Entry(_DONE[item.type], index))
        if item.type != "function_call":
            self.log.add(Entry("response.content_part.done", index))
        self.log.add(Entry("response.output_item.done", index))

    def end(self, kind: str, status: str, usage: Json | None, error: Json | None = None) -> None:
        """Nothing comes any more."""
        self.close(status == "completed")
        self.status, self.usage, self.error = status, usage, error
        self.completed_at = int(time.time())
        self.log.add(Entry(kind))
        self._frames = {}

    # ------------------------------------------------------------------------------------------- it is told

    def response(self) -> Json:
        """The response object as it is now."""
        return self._object(self.status, [item.shown() for item in self.items])

    def _object(self, status: str, output: list[Json]) -> Json:
        over = self.over and status == self.status
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": self.completed_at if over and status == "completed" else None,
            "status": status,
            "error": self.error if over else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._model,
            "output": output,
            **self._told,
            "usage": self.usage if over else None,
        }

    def event(self, number: int) -> Json:
        """The event of that number; raises ``RequestError`` if it is gone."""
        entry = self.log.at(number)
        made: Json = {"type": entry.kind, "sequence_number": number}
        if entry.kind in ENDS:
            return {**made, "response": self.response()}
        if entry.kind in ("response.paused", "response.resumed"):
            return {**made, "response_id": self.id, **entry.data}
        if isinstance(entry.data, Mapping):
            return {**made, **self._whole(entry)}
        return {**made, **self._of_item(entry)}

    def _whole(self, entry: Entry) -> Json:
        fields = dict(entry.data)
        response = self._object(fields.pop("status"), [])
        if entry.kind == "response.created":
            # In this event only: everywhere else the client gets back what it sent.
            response["metadata"] = {**response["metadata"], "stepwell_request": self.requests}
        return {"response": response, **fields}

    def _of_item(self, entry: Entry) -> Json:
        item, kind = self.items[entry.item], entry.kind
        if kind.startswith("response.output_item."):
            return {"output_index": entry.item, "item": item.shown(kind.endswith("added"))}
        made: Json = {"item_id": item.id, "output_index": entry.item}
        if item.type != "function_call":
            made["content_index"] = 0
        if kind in _ITEM_OF:
            text, rows = entry.data if isinstance(entry.data, tuple) else (entry.data, [])
            made["delta"] = text
            return {**made, "logprobs": rows} if item.type == "message" else made
        if kind.startswith("response.content_part."):
            return {**made, "part": item.part(kind.endswith("added"))}
        if item.type == "function_call":
            return {**made, "name": item.name, "arguments": item.text}
        made["text"] = item.text
        return {**made, "logprobs": item.logprobs} if item.type == "message" else made

    def encoded(self, number: int, lane: str | None = None) -> tuple[str, bytes]:
        """Type and JSON of an event, with the lane it goes to.  Raises ``RequestError`` if it is gone."""
        entry = self.log.at(number)
        if isinstance(entry.data, str):
            before, between, after = self._frames.get((entry.item, lane)) or self._frame(number, lane)
            return entry.kind, b"%b%d%b%b%b" % (before, number, between, _encode(entry.data), after)
        made = self.event(number)
        if lane is not None:
            made["stream_id"] = lane
        return entry.kind, _encode(made)

    def _frame(self, number: int, lane: str | None) -> tuple[bytes, bytes, bytes]:
        """What stands around number and text of an item's pieces: the same every time, so it is encoded once."""
        entry = self.log.at(number)
        made = {"type": entry.kind, "sequence_number": 0, **self._of_item(Entry(entry.kind, entry.item, _PLACE))}
        if lane is not None:
            made["stream_id"] = lane
        head, _, rest = _encode(made).partition(b'"sequence_number":0')
        between, _, after = rest.partition(_PLACED)
        frame = head + b'"sequence_number":', between, after
        if not self.over:
            self._frames[entry.item, lane] = frame
        return frame
