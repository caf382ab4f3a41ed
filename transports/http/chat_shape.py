"""A chat's answer in OpenAI's frames: content, reasoning, and calls of tools."""

from __future__ import annotations

from stepwell.core.parsing import CallArguments, CallBegan, CallEnded, Content, Said
from stepwell.transports.generation import Choice, Generation
from stepwell.transports.http.openai_shape import Json, Logprobs, OpenAIShape
from stepwell.transports.http.requests import ChatRequest
from stepwell.transports.parsing.reading import Reading
from stepwell.transports.service import Service


class ChatShape(OpenAIShape):
    """Of ``ChatRequest``."""

    prefix, whole, piece = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, service: Service, request: ChatRequest, tier: str = "default") -> None:
        super().__init__(service, request, tier)
        self._called: dict[int, int] = {}
        """By choice: its calls that have begun."""

    def opening(self, choice: Choice) -> list[tuple[Json, Logprobs | None]]:
        return [({"delta": {"role": "assistant", "content": ""}, **self.prompt_ids(choice)}, None)]

    def delta(self, text: str) -> Json:
        return {"delta": {"content": text}}

    def last_delta(self) -> Json:
        return {"delta": {}}

    def deltas(self, choice: Choice) -> list[Json]:
        said = choice.reading.take() if choice.reading is not None else ()
        return [{"delta": self._delta(choice, each)} for each in said if not isinstance(each, CallEnded)]

    def _delta(self, choice: Choice, said: Said) -> Json:
        if isinstance(said, Content):
            return {"content": said.text}
        if isinstance(said, CallBegan):
            index = self._called[choice.index] = self._called.get(choice.index, -1) + 1
            function = {"name": said.name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": said.id, "type": "function", "function": function}]}
        if isinstance(said, CallArguments):
            return {"tool_calls": [{"index": self._called[choice.index], "function": {"arguments": said.text}}]}
        assert not isinstance(said, CallEnded)
        return {"reasoning_content": said.text}

    def message(self, choice: Choice) -> Json:
        reading = choice.reading
        if reading is None:
            return {"message": {"role": "assistant", "content": choice.text, "refusal": None}}
        return {"message": {"role": "assistant", **_read(reading), "refusal": None}}

    def reason(self, choice: Choice) -> str:
        called = choice.reason == "stop" and choice.reading is not None and choice.reading.calls
        return "tool_calls" if called else choice.reason

    def answer(self, generation: Generation) -> Json:
        return {**super().answer(generation), **self.prompt_ids(generation.choices[0])}

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


def _read(reading: Reading) -> Json:
    """Of a message: what was said, thought and called; content is null where there is nothing but calls."""
    made: Json = {"content": reading.content or (None if reading.calls else "")}
    if reading.reasoning:
        made["reasoning_content"] = reading.reasoning
    if reading.calls:
        made["tool_calls"] = [
            {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
            for each in reading.calls
        ]
    return made
