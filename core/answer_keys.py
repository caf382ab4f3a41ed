"""Page keys of answers, continued from those of their prompts, so that a chat's next turn finds the answer too.

They are made while answers grow, a few at each look, and the rest when a request ends: no look takes long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from stepwell.core.events import Cancel, Event, StepDone, Stop
from stepwell.core.execution import StepResult
from stepwell.core.page_keys import page_keys
from stepwell.core.state import State
from stepwell.core.types import RequestId


class Answer(Protocol):
    """What a request has said so far: a stream."""

    @property
    def tokens(self) -> list[int]: ...


Answers = Mapping[RequestId, Answer]

AT_A_LOOK = 4
"""Answers that are continued at a look: with 256 running, one is looked at every 64 steps."""


class AnswerKeys:
    """Of the requests of one engine, whose scheduler's ``state`` says what is in flight."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._key_tokens = state.allocator.key_tokens
        self._chains: dict[RequestId, _Chain] = {}
        self._line: deque[RequestId] = deque()

    def begin(self, request: RequestId, prompt: Sequence[int], keys: Sequence[int], salt: bytes) -> None:
        """``keys`` are those of ``prompt``, made with ``salt``; without a salt its answer gets none."""
        if salt and self._state.allocator.reuses_prefixes:
            keyed = len(keys) * self._key_tokens
            self._chains[request] = _Chain(self._key_tokens, salt, prompt[keyed:], keys[-1] if keys else 0)
            self._line.append(request)

    def end(self, request: RequestId) -> None:
        """The request ended; harmless if it has no keys."""
        self._chains.pop(request, None)

    def look(self, answers: Answers) -> None:
        """Continue the next few answers."""
        line, chains = self._line, self._chains
        for _ in range(min(AT_A_LOOK, len(line))):
            request = line.popleft()
            chain = chains.get(request)
            if chain is not None and request in answers:
                chain.follow(answers[request].tokens)
                line.append(request)

    def complete(self, events: Sequence[Event], results: Sequence[StepResult], answers: Answers) -> None:
        """Put the keys of what ends by ``events`` into them.  What is in ``results`` the answers do not hold yet."""
        if not self._chains:
            return
        steps = {result.step: place for place, result in enumerate(results)}
        for event in events:
            if isinstance(event, StepDone):
                last = next((each.last for each in self._state.inflight if each.id == event.step), ())
                ending = dict.fromkeys([*event.ended, *(each.id for each in last)])
                if ending and event.step in steps:
                    self._of_step(event, list(ending), results[: steps[event.step] + 1], answers)
            elif isinstance(event, Stop):
                event.keys = self._of(event.request, answers, event.keep, [])
            elif isinstance(event, Cancel):
                event.keys = self._of(event.request, answers, None, [])

    def _of_step(
        self,
        event: StepDone,
        ending: Sequence[RequestId],
        results: Sequence[StepResult],
        answers: Answers,
    ) -> None:
        rows = [dict(result.tokens) for result in results]
        for request in ending:
            news = [each[request] for each in rows if request in each]
            keys = self._of(request, answers, None, news)
            if keys:
                event.keys.append((request, keys))

    def _of(self, request: RequestId, answers: Answers, keep: int | None, news: list[int]) -> list[int]:
        """Of the answer's first ``keep`` tokens, ``news`` at its end; never of the last one, which is not computed."""
        chain, answer = self._chains.get(request), answers.get(request)
        if chain is None or answer is None:
            return []
        tokens = answer.tokens + news if news else answer.tokens
        return chain.keys_of(tokens, min(len(tokens) - 1, len(tokens) if keep is None else keep))


class _Chain:
    """``tail`` are the tokens before the answer that have no key, ``after`` is the key of what is before those."""

    __slots__ = ("_key_tokens", "_keys", "_last", "_rest", "_salt", "_tail", "_taken")

    def __init__(self, key_tokens: int, salt: bytes, tail: Sequence[int], after: int) -> None:
        self._key_tokens = key_tokens
        self._salt = salt
        self._tail = len(tail)
        self._rest = list(tail)
        self._last = after
        self._taken = 0
        self._keys: list[int] = []

    def follow(self, answer: Sequence[int]) -> None:
        """Make the keys that ``answer`` fills."""
        new = self._rest + list(answer[self._taken :])
        self._taken = len(answer)
        made = page_keys(new, self._key_tokens, self._salt, self._last)
        if made:
            self._keys += made
            self._last = made[-1]
        self._rest = new[len(made) * self._key_tokens :]

    def keys_of(self, answer: Sequence[int], count: int) -> list[int]:
        """Keys of what the first ``count`` tokens of ``answer`` fill."""
        if count > self._taken:
            self.follow(answer[:count])
        return self._keys[: (self._tail + max(count, 0)) // self._key_tokens]
