"""SmolLM2: ``<tool_call>[{"name": …, "arguments": {…}}, …]</tool_call>``, all calls in one list.

Its chat template knows no tools; what tells the model of them is a system message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from stepwell.core.parsing import CallShape, ToolCall
from stepwell.transports.parsing.hermes import CLOSE, OPEN, tagged
from stepwell.transports.parsing.plugin import NoOptions
from stepwell.transports.parsing.source import Machine

_INSTRUCTIONS = """\
You are an expert in composing functions. You are given a question and a set of possible functions. Make one or more \
calls of functions to answer it. If none of the functions fits, or the question lacks what a function needs, say so.

You have these functions:
<tools>{tools}</tools>

Answer with the calls alone, in this format:
<tool_call>[
{{"name": "<name of the function>", "arguments": {{"<name of an argument>": <value>}}}}
]</tool_call>"""


SHAPE = CallShape(mark=OPEN, opening=f"{OPEN}[", between=", ", closing=f"]{CLOSE}")


class SmolLM2:
    """See ``core.parsing.ToolParser``."""

    class Options(NoOptions, frozen=True):
        """None."""

    name: ClassVar[str] = "smollm2"
    signs: ClassVar[Sequence[str]] = ("named SmolLM",)
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
        return _INSTRUCTIONS.format(tools=json.dumps(tools, ensure_ascii=False))
