"""What a model's text says, read piece by piece: content, reasoning, and calls of tools.

Models write calls as text, each family in its own way.  A parser takes the text as it comes and says what it is; it is
a state machine without clock or I/O, and what it finds must not depend on how the text was cut.  The suite for both
kinds is ``core.testing.check_tool_parser`` and ``check_reasoning_parser``.

The rules of all of them:

- **Nothing is lost.**  Text that is no call after all is content, marks included.  A text without calls is content, to
  the letter.
- **A call begins** when its name and the beginning of its arguments are there.  From then on its arguments are given as
  the model writes them, up to the brace that ends them: nobody repairs them, and they may not be JSON.  Text that ends
  before that brace leaves a call that is not complete.
- **White space** directly before and after a mark is neither content nor reasoning.
- **Little is held back**: what may yet become a mark, and the head of a call up to its arguments, at most
  ``MOST_HELD`` letters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import msgspec

MOST_HELD = 1 << 16
"""Letters that a parser may keep to itself.  A head of a call that is longer is content."""


class Content(msgspec.Struct, frozen=True, gc=False):
    """More of the answer's text."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """More of what the model thought before it answered."""

    text: str


class CallBegan(msgspec.Struct, frozen=True, gc=False):
    """A tool is called.  ``id`` is the model's own, if it writes one.  The next call begins when this one ended."""

    name: str
    id: str = ""


class CallArguments(msgspec.Struct, frozen=True, gc=False):
    """More of the call's arguments, which together are the text of a JSON object."""

    text: str


class CallEnded(msgspec.Struct, frozen=True, gc=False):
    """``complete``: its arguments came to their end."""

    complete: bool = True


Said = Content | Reasoning | CallBegan | CallArguments | CallEnded


class ToolCall(msgspec.Struct, frozen=True):
    """A whole one.  ``arguments`` is the text of a JSON object."""

    name: str
    arguments: str = "{}"


class CallShape(msgspec.Struct, frozen=True, kw_only=True):
    """How a family of models writes calls, as literal text around names and arguments.

    ``opening`` [``before`` call ``after``] ``between`` [``before`` call ``after``] … ``closing``.  A call is an object
    with the name and the arguments under two keys; or, if ``middle`` is given, the name, that text, and the arguments.
    """

    mark: str = ""
    """What the reader knows calls by: all of that begins with it.  Empty: an answer that begins as JSON does calls."""
    opening: str = ""
    before: str = ""
    middle: str | None = None
    after: str = ""
    between: str = ""
    closing: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"

    def written(self, calls: Sequence[ToolCall]) -> str:
        """The calls in this shape."""
        each = self.between.join(f"{self.before}{self._one(call)}{self.after}" for call in calls)
        return f"{self.opening}{each}{self.closing}"

    def _one(self, call: ToolCall) -> str:
        if self.middle is not None:
            return f"{call.name}{self.middle}{call.arguments}"
        name = json.dumps(call.name, ensure_ascii=False)
        return f'{{"{self.name_key}": {name}, "{self.arguments_key}": {call.arguments}}}'


class AnswerReader(Protocol):
    """Of one answer."""

    @property
    def held(self) -> int:
        """Letters that it keeps to itself for now."""
        ...

    def feed(self, text: str) -> list[Said]:
        """What is certain now."""
        ...

    def finish(self) -> list[Said]:
        """The text has ended: what was held.  Called once."""
        ...


class ToolParser(Protocol):
    """Of one model.  A plugin of the group ``stepwell.tool_parsers``: a class with ``Options``, called with them."""

    name: ClassVar[str]
    signs: ClassVar[Sequence[str]]
    """A chat template that holds one of these belongs to a model that writes calls so."""
    tokens: ClassVar[Sequence[str]]
    """What it looks for that may be special tokens, whose names are not text otherwise."""

    def reader(self) -> AnswerReader:
        """For the next answer."""
        ...

    def shape(self, template: str) -> CallShape | None:
        """How a model with that chat template writes calls, so that a grammar can hold it to them; None: none can.

        What is not written so, and what the reader takes for a call all the same, begins with ``mark`` too.
        """
        ...

    def write(self, calls: Sequence[ToolCall]) -> str:
        """The calls as such a model writes them: what a reader reads back."""
        ...

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """What a system message must say where the chat template says nothing of tools; empty: it always does."""
        ...


class ReasoningReader(AnswerReader, Protocol):
    """Of one answer.  Whatever it says is ``Reasoning`` or ``Content``."""

    @property
    def inside(self) -> bool:
        """Whether what comes next is reasoning, as far as is known."""
        ...

    @property
    def over(self) -> bool:
        """All that comes is content, and nothing is held: nobody needs to ask any more."""
        ...


class ReasoningParser(Protocol):
    """Of one model.  A plugin of the group ``stepwell.reasoning_parsers``, called with its options."""

    name: ClassVar[str]
    signs: ClassVar[Sequence[str]]
    tokens: ClassVar[Sequence[str]]
    """The first two are the marks around the reasoning."""

    def begins(self, prompt: str) -> bool:
        """Whether a prompt that ends so has begun the reasoning: ``inside`` of its answer."""
        ...

    def reader(self, *, inside: bool = False) -> ReasoningReader:
        """For the next answer."""
        ...
