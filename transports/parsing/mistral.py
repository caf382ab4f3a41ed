"""Mistral: ``[TOOL_CALLS][{"name": …, "arguments": {…}}, …]``; its later models, ``[TOOL_CALLS]name[ARGS]{…}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from stepwell.core.parsing import CallShape, ToolCall
from stepwell.transports.parsing.calls import MOST_NAME, arguments, calls
from stepwell.transports.parsing.content import attempt, upto
from stepwell.transports.parsing.plugin import NoOptions
from stepwell.transports.parsing.source import Machine, NoCall, Reads, Source

TAG, ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


def tagged(source: Source) -> Reads[None]:
    """Content, and calls after tags."""
    called = False
    while (yield from upto(source, (TAG,), skips=called)):
        called = yield from attempt(source, _after)


def _after(source: Source) -> Reads[None]:
    yield from source.white()
    if (yield from source.sees("[")) or (yield from source.sees("{")):
        yield from calls(source)
        return
    name = yield from source.word(MOST_NAME)
    id = (yield from source.word(MOST_NAME)) if (yield from source.takes(ID)) else ""
    yield from source.takes(ARGS)
    yield from source.white()
    if not (yield from source.sees("{")):
        raise NoCall
    yield from arguments(source, name, id)


LISTED = CallShape(mark=TAG, opening=f"{TAG}[", between=", ", closing="]")
NAMED = CallShape(mark=TAG, before=TAG, middle=ARGS)


class Mistral:
    """See ``core.parsing.ToolParser``."""

    class Options(NoOptions, frozen=True):
        """None."""

    name: ClassVar[str] = "mistral"
    signs: ClassVar[Sequence[str]] = (TAG,)
    tokens: ClassVar[Sequence[str]] = (TAG, ID, ARGS)

    def __init__(self, options: Options) -> None:
        """Nothing to keep."""

    def reader(self) -> Machine:
        return Machine(tagged)

    def shape(self, template: str) -> CallShape:
        return NAMED if ARGS in template else LISTED

    def write(self, calls: Sequence[ToolCall]) -> str:
        return LISTED.written(calls)

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        return ""
