"""Answers that a grammar holds to calls of tools: bare JSON, whatever the model's family writes by itself."""

from __future__ import annotations

from collections.abc import Callable

from stepwell.transports.parsing.calls import arguments, calls
from stepwell.transports.parsing.content import attempt, rest
from stepwell.transports.parsing.source import Machine, NoCall, Reads, Source


def forced_call(name: str) -> Machine:
    """The whole answer is the arguments of one tool."""

    def call(source: Source) -> Reads[None]:
        yield from source.white()
        if not (yield from source.sees("{")):
            raise NoCall
        yield from arguments(source, name)

    return Machine(_all_of(call))


def forced_calls() -> Machine:
    """The whole answer is a list of calls."""
    return Machine(_all_of(_calls))


def _all_of(read: Callable[[Source], Reads[None]]) -> Callable[[Source], Reads[None]]:
    """What ``read`` reads, and nothing else but content."""

    def grammar(source: Source) -> Reads[None]:
        called = yield from attempt(source, read)
        yield from rest(source, skips=called)

    return grammar


def _calls(source: Source) -> Reads[None]:
    yield from source.white()
    yield from calls(source)
