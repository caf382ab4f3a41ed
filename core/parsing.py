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


class ToolParser(Protocol):
    """Of one answer.  A plugin of the group ``stepwell.tool_parsers``: a class with ``Options``, called with them."""

    name: ClassVar[str]
    signs: ClassVar[Sequence[str]]
    """A chat template that holds one of these belongs to a model that writes calls so."""
    tokens: ClassVar[Sequence[str]]
    """What it looks for that may be special tokens, whose names are not text otherwise."""

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

    @staticmethod
    def write(calls: Sequence[ToolCall]) -> str:
        """The calls as such a model writes them: what ``feed`` reads back."""
        ...

    @staticmethod
    def instructions(tools: Sequence[Mapping[str, Any]]) -> str:
        """What a system message must say where the chat template says nothing of tools; empty: it always does."""
        ...


class ReasoningParser(Protocol):
    """Of one answer.  A plugin of the group ``stepwell.reasoning_parsers``, called with its options and ``inside``.

    Whatever it says is ``Reasoning`` or ``Content``.
    """

    name: ClassVar[str]
    signs: ClassVar[Sequence[str]]
    tokens: ClassVar[Sequence[str]]

    @staticmethod
    def begins(prompt: str) -> bool:
        """Whether a prompt that ends so has begun the reasoning: ``inside`` of its answer."""
        ...

    @property
    def inside(self) -> bool:
        """Whether what comes next is reasoning, as far as is known."""
        ...

    @property
    def over(self) -> bool:
        """All that comes is content, and nothing is held: nobody needs to ask any more."""
        ...

    @property
    def held(self) -> int: ...
    def feed(self, text: str) -> list[Said]: ...
    def finish(self) -> list[Said]: ...
