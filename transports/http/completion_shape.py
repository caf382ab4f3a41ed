"""The continuation of a text in OpenAI's frames, with the text itself in front if it is to be said again."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.transports.generation import Choice, Generation
from stepwell.transports.http.columns import Columns, columns, columns_of_prompt
from stepwell.transports.http.openai_shape import Json, Logprobs, OpenAIShape
from stepwell.transports.http.requests import CompletionRequest
from stepwell.transports.service import Service


class CompletionShape(OpenAIShape):
    """Of ``CompletionRequest``.  ``echoes`` are the prompts' texts, if they are to be said first: with their own
    log-probabilities, if any are asked for."""

    prefix, whole, piece = "cmpl", "text_completion", "text_completion"

    def __init__(
        self, service: Service, request: CompletionRequest, echoes: Sequence[str] = (), tier: str = "default"
    ) -> None:
        super().__init__(service, request, tier)
        self._echoes = echoes
        self._n = request.n or 1
        self.prepares = bool(echoes) and request.logprobs is not None and request.logprobs is not False
        self._offsets: dict[int, int] = {}
        self._prompts: dict[int, Columns] = {}
        """By prompt: the rows of its tokens."""

    def _echo(self, index: int) -> str:
        return self._echoes[index // self._n] if self._echoes else ""

    async def prepare(self, generation: Generation) -> None:
        if not self.prepares:
            return
        firsts = generation.choices[:: self._n]
        while known := [place for place, first in enumerate(firsts) if place not in self._prompts and _knows(first)]:
            first = firsts[known[0]]
            self._prompts[known[0]] = await columns_of_prompt(first.prompt, first.stream.prompt_logprobs, self.token)

    def begins(self, choice: Choice) -> bool:
        return not self.prepares or choice.index // self._n in self._prompts

    def opening(self, choice: Choice) -> list[tuple[Json, Logprobs | None]]:
        if not self._echoes:
            ids = self.prompt_ids(choice)
            return [({"text": "", **ids}, None)] if ids else []
        mine = self._prompts.get(choice.index // self._n)
        return [({"text": self._echo(choice.index), **self.prompt_ids(choice)}, mine.raw() if mine else None)]

    def delta(self, text: str) -> Json:
        return {"text": text}

    def last_delta(self) -> Json:
        return {"text": ""}

    def message(self, choice: Choice) -> Json:
        return {"text": self._echo(choice.index) + choice.text, **self.prompt_ids(choice)}

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
