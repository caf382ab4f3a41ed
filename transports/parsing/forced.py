"""Answers that a grammar holds to calls of tools: bare JSON, whatever the model's family writes by itself."""

from __future__ import annotations

from stepwell.core.parsing import Said
from stepwell.transports.parsing.calls import arguments, calls
from stepwell.transports.parsing.content import attempt, rest
from stepwell.transports.parsing.source import Machine, NoCall, Reads, Source


class ForcedCall:
    """The whole answer is the arguments of one tool."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._machine = Machine(self._grammar)

    def feed(self, text: str) -> list[Said]:
        return self._machine.feed(text)

    def finish(self) -> list[Said]:
        return self._machine.finish()

    def _grammar(self, source: Source) -> Reads[None]:
        called = yield from attempt(source, self._call)
        yield from rest(source, skips=called)

    def _call(self, source: Source) -> Reads[None]:
        yield from source.white()
        if not (yield from source.sees("{")):
            raise NoCall
        yield from arguments(source, self._name)


class ForcedCalls:
    """The whole answer is a list of calls."""

    def __init__(self) -> None:
        self._machine = Machine(_listed)

    def feed(self, text: str) -> list[Said]:
        return self._machine.feed(text)

    def finish(self) -> list[Said]:
        return self._machine.finish()


def _listed(source: Source) -> Reads[None]:
    called = yield from attempt(source, _calls)
    yield from rest(source, skips=called)


def _calls(source: Source) -> Reads[None]:
    yield from source.white()
    yield from calls(source)
