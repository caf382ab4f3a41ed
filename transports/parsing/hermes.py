"""Hermes, Qwen and many others: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, one a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from stepwell.core.parsing import CallShape, ToolCall
from stepwell.transports.parsing.calls import calls
from stepwell.transports.parsing.content import attempt, upto
from stepwell.transports.parsing.plugin import NoOptions, described
from stepwell.transports.parsing.source import Machine, Reads, Source

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_INSTRUCTIONS = """\
You may call one or more functions to help with what the user asks.

The functions that you have are inside <tools></tools>:
<tools>
{tools}
</tools>

To call a function, write a JSON object with its name and its arguments inside <tool_call></tool_call>:
<tool_call>
{{"name": <function-name>, "arguments": <object-of-arguments>}}
</tool_call>"""


def tagged(source: Source) -> Reads[None]:
    """Content, and calls in tags."""
    called = False
    while (yield from upto(source, (OPEN,), skips=called)):
        called = yield from attempt(source, _inside)


def _inside(source: Source) -> Reads[None]:
    yield from source.white()
    yield from calls(source)
    yield from source.white()
    if not (yield from source.takes(CLOSE)):
        source.at = 0


SHAPE = CallShape(mark=OPEN, before=f"{OPEN}\n", after=f"\n{CLOSE}", between="\n")


class Hermes:
    """See ``core.parsing.ToolParser``."""

    class Options(NoOptions, frozen=True):
        """None."""

    name: ClassVar[str] = "hermes"
    signs: ClassVar[Sequence[str]] = (OPEN,)
    tokens: ClassVar[Sequence[str]] = (OPEN, CLOSE)

    def __init__(self, options: Options) -> None:
        """Nothing to keep."""

    def reader(self) -> Machine:
        return Machine(tagged)

    def shape(self, template: str) -> CallShape:
        return SHAPE

    def write(self, calls: Sequence[ToolCall]) -> str:
        return SHAPE.written(calls)

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        return _INSTRUCTIONS.format(tools=described(tools))
