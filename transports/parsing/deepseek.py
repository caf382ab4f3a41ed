"""DeepSeek: calls between marks of their own, each with a name, and with arguments in a block of JSON (V3, R1) or bare
(V3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from stepwell.core.parsing import CallShape, ToolCall
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


FENCED = CallShape(
    mark=BEGIN,
    opening=BEGIN,
    before=f"{CALL}function{SEPARATOR}",
    middle=f"\n{FENCE}json\n",
    after=f"\n{FENCE}{CALL_END}",
    between="\n",
    closing=END,
)
BARE = CallShape(mark=BEGIN, opening=BEGIN, before=CALL, middle=SEPARATOR, after=CALL_END, closing=END)


class DeepSeek:
    """See ``core.parsing.ToolParser``."""

    class Options(NoOptions, frozen=True):
        """None."""

    name: ClassVar[str] = "deepseek"
    signs: ClassVar[Sequence[str]] = (BEGIN,)
    tokens: ClassVar[Sequence[str]] = (BEGIN, END, CALL, SEPARATOR, CALL_END)

    def __init__(self, options: Options) -> None:
        """Nothing to keep."""

    def reader(self) -> Machine:
        return Machine(marked)

    def shape(self, template: str) -> CallShape:
        """V3 and R1 write blocks of JSON, and their templates show one; V3.1 does not."""
        return FENCED if FENCE in template else BARE

    def write(self, calls: Sequence[ToolCall]) -> str:
        return FENCED.written(calls)

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        return ""
