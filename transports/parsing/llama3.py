"""Llama 3: an answer that begins with ``{"name": …, "parameters": {…}}``, or goes on with it after ``<|python_tag|>``.

Several calls have semicolons between them.  Code after the tag, which is for an interpreter, is content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from stepwell.core.parsing import Said, ToolCall
from stepwell.transports.parsing.calls import calls
from stepwell.transports.parsing.content import attempt, upto
from stepwell.transports.parsing.plugin import NoOptions, as_object
from stepwell.transports.parsing.source import Machine, NoCall, Reads, Source

TAG = "<|python_tag|>"


def tagged_or_bare(source: Source) -> Reads[None]:
    """Content and calls."""
    called = False
    if (yield from _bare(source)):
        called = yield from attempt(source, calls)
    while (yield from upto(source, (TAG,), skips=called)):
        called = yield from attempt(source, _inside)


def _bare(source: Source) -> Reads[bool]:
    """Whether the answer begins with an object or a list, perhaps after white space."""
    try:
        yield from source.white()
        return (yield from source.sees("{")) or (yield from source.sees("["))
    except NoCall:
        return False


def _inside(source: Source) -> Reads[None]:
    yield from source.white()
    yield from calls(source)


class Llama3:
    """See ``core.parsing.ToolParser``."""

    class Options(NoOptions, frozen=True):
        """None."""

    name: ClassVar[str] = "llama3"
    signs: ClassVar[Sequence[str]] = (TAG, '{"name": function name, "parameters":')
    tokens: ClassVar[Sequence[str]] = (TAG,)

    def __init__(self, options: Options) -> None:
        self._machine = Machine(tagged_or_bare)

    @property
    def held(self) -> int:
        return self._machine.held

    def feed(self, text: str) -> list[Said]:
        return self._machine.feed(text)

    def finish(self) -> list[Said]:
        return self._machine.finish()

    @staticmethod
    def write(calls: Sequence[ToolCall]) -> str:
        return TAG + "; ".join(as_object(call, "parameters") for call in calls)

    @staticmethod
    def instructions(tools: Sequence[Mapping[str, Any]]) -> str:
        return ""
