"""DeepSeek: calls between marks of their own, each with a name, and with arguments in a block of JSON (V3, R1) or bare
(V3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from stepwell.core.parsing import Said, ToolCall
from stepwell.transports.parsing.calls import MOST_NAME, arguments
from stepwell.transports.parsing.content import attempt, upto
from stepwell.transports.parsing.plugin import NoOptions
from stepwell.transports.parsing.source import Machine, NoCall, Reads, Source

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCE = "```"


def marked(source: Source) -> Reads[None]:
    """Content, and calls between marks."""
    called = False
    while (yield from upto(source, (BEGIN,), skips=called)):
        called = yield from attempt(source, _section)


def _section(source: Source) -> Reads[None]:
    yield from _call(source)
    while True:
        source.drop()
        try:
            yield from source.white()
            if (yield from source.takes(END)):
                return
            yield from _call(source)
        except NoCall:
            source.at = 0
            return


def _call(source: Source) -> Reads[None]:
    yield from source.white()
    yield from source.expect(CALL)
    name = (yield from source.upto(SEPARATOR, MOST_NAME)).strip()
    yield from source.white()
    if not (yield from source.sees("{")):  # what came first was the kind of call: "function"
        name = (yield from source.upto("\n", MOST_NAME)).strip()
        yield from source.white()
        yield from source.expect(FENCE + "json")
        yield from source.white()
    if not name or not (yield from source.sees("{")):
        raise NoCall
    if (yield from arguments(source, name)):
        yield from _ended(source)


def _ended(source: Source) -> Reads[None]:
    """The marks after the arguments, if they are there; what was said stays said."""
    try:
        yield from source.white()
        if (yield from source.takes(FENCE)):
            yield from source.white()
        yield from source.expect(CALL_END)
    except NoCall:
        source.at = 0


class DeepSeek:
    """See ``core.parsing.ToolParser``."""

    class Options(NoOptions, frozen=True):
        """None."""

    name: ClassVar[str] = "deepseek"
    signs: ClassVar[Sequence[str]] = (BEGIN,)
    tokens: ClassVar[Sequence[str]] = (BEGIN, END, CALL, SEPARATOR, CALL_END)

    def __init__(self, options: Options) -> None:
        self._machine = Machine(marked)

    @property
    def held(self) -> int:
        return self._machine.held

    def feed(self, text: str) -> list[Said]:
        return self._machine.feed(text)

    def finish(self) -> list[Said]:
        return self._machine.finish()

    @staticmethod
    def write(calls: Sequence[ToolCall]) -> str:
        each = "\n".join(
            f"{CALL}function{SEPARATOR}{call.name}\n{FENCE}json\n{call.arguments}\n{FENCE}{CALL_END}" for call in calls
        )
        return BEGIN + each + END

    @staticmethod
    def instructions(tools: Sequence[Mapping[str, Any]]) -> str:
        return ""
