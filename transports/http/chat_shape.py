"""A chat's answer in OpenAI's frames."""

from __future__ import annotations

from stepwell.transports.generation import Choice
from stepwell.transports.http.openai_shape import Json, Logprobs, OpenAIShape


class ChatShape(OpenAIShape):
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
