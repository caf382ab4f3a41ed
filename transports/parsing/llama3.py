"""Llama 3: an answer that begins with ``{"name": …, "parameters": {…}}``, or goes on with it after ``<|python_tag|>``.

Several calls have semicolons between them.  Code after the tag, which is for an interpreter, is content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from stepwell.core.parsing import CallShape, ToolCall
from stepwell.transports.parsing.calls import calls
from stepwell.transports.parsing.content import attempt, upto
from stepwell.transports.parsing.plugin import NoOptions
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
        """Nothing to keep."""

    def reader(self) -> Machine:
        return Machine(tagged_or_bare)

    def shape(self, template: str) -> CallShape:
        """Without the tag, as the templates ask for it."""
        return CallShape(between="; ", arguments_key="parameters")

    def write(self, calls: Sequence[ToolCall]) -> str:
        return TAG + self.shape("").written(calls)

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        return ""
