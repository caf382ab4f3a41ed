"""Which parsers a model's answers go through, by configuration or by what its chat template gives away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stepwell.core import registry
from stepwell.core.config import ModelConfig
from stepwell.core.errors import UserError
from stepwell.core.parsing import AnswerReader, ReasoningParser, ReasoningReader, ToolParser
from stepwell.core.protocols import Tokenizer
from stepwell.transports.parsing.reading import Reading
from stepwell.transports.tool_grammar import Writing

NONE, AUTO = "none", "auto"
PROMPT_END = 16
"""Tokens at a prompt's end among which the mark is that begins the reasoning."""

MakeReading = Callable[[Sequence[int]], Reading | None]
"""For one answer to a prompt; None: it is not read at all."""


class Parsers:
    """Of one model.  ``template`` is the text of its chat template, empty if it has none."""

    def __init__(self, config: ModelConfig, template: str, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self.tools: ToolParser | None = _made(
            "tool_parsers", config.tool_parser, template, config.tool_parser_options, "model.tool_parser_options"
        )
        """Who reads calls of tools, if anybody does."""
        self.reasoning: ReasoningParser | None = _made(
            "reasoning_parsers",
            config.reasoning_parser,
            template,
            config.reasoning_parser_options,
            "model.reasoning_parser_options",
        )
        self._special = dict(self._special_marks())
        self._shown = {id: mark.encode() for mark, id in self._special.items()}

    @property
    def tells_of_tools(self) -> bool:
        """Whether the chat template does, so that nobody else needs to."""
        return "tools" in self._template

    @property
    def writing(self) -> Writing | None:
        """How the model writes its calls, so that they can be held to something; None: nobody knows."""
        tell = getattr(self.tools, "shape", None)
        shape = tell(self._template) if tell is not None else None
        if self.tools is None or shape is None:
            return None
        thoughts = tuple(self.reasoning.tokens[:2]) if self.reasoning is not None else ()
        return Writing(shape=shape, marks=tuple(self.tools.tokens), thoughts=thoughts, special=self._special)

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """What a system message must say of ``tools``; empty if the template says it, or nobody knows how."""
        if self.tools is None or self.tells_of_tools:
            return ""
        tell = getattr(self.tools, "instructions", None)
        return tell(tools) if tell is not None else ""

    def chats(
        self, *, tools: bool = False, one_call: bool = False, forced: Callable[[], AnswerReader] | None = None
    ) -> MakeReading | None:
        """For answers of a chat; None if they need not be read.  ``forced``: a grammar holds them to calls, which this
        reads; ``tools``: there may be some."""
        if self.reasoning is None and not tools and forced is None:
            return None

        def make(prompt: Sequence[int]) -> Reading | None:
            calls = forced() if forced is not None else self._of_tools() if tools else None
            think = self._of_reasoning(prompt) if forced is None else None
            return Reading(think, calls, one_call=one_call)

        return make

    def shows(self, tokenizer: Tokenizer) -> Tokenizer:
        """The tokenizer, with the marks among its special tokens as text."""
        return Showing(tokenizer, self._shown) if self._shown else tokenizer

    def _of_tools(self) -> AnswerReader | None:
        return self.tools.reader() if self.tools is not None else None

    def _of_reasoning(self, prompt: Sequence[int]) -> ReasoningReader | None:
        if self.reasoning is None:
            return None
        end = b"".join(map(self.shows(self._tokenizer).token_bytes, prompt[-PROMPT_END:])).decode("utf-8", "replace")
        return self.reasoning.reader(inside=self.reasoning.begins(end))

    def _special_marks(self) -> Iterator[tuple[str, int]]:
        names: Mapping[str, int] = getattr(self._tokenizer, "special_tokens", {})
        for plugin in (self.tools, self.reasoning):
            for mark in plugin.tokens if plugin is not None else ():
                if mark in names:
                    yield mark, names[mark]


class Showing:
    """A tokenizer whose tokens of some ids have a text although they are special."""

    def __init__(self, tokenizer: Tokenizer, shown: Mapping[int, bytes]) -> None:
        self._tokenizer = tokenizer
        self._shown = shown
        self.encode = tokenizer.encode

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def end_tokens(self) -> frozenset[int]:
        return self._tokenizer.end_tokens

    def token_bytes(self, token: int) -> bytes:
        return self._shown.get(token) or self._tokenizer.token_bytes(token)

    def decode(self, tokens: Sequence[int]) -> bytes:
        if not any(token in self._shown for token in tokens):
            return self._tokenizer.decode(tokens)
        return b"".join(map(self.token_bytes, tokens))


def _made(group: registry.Group, name: str, template: str, options: Mapping[str, object], field: str) -> Any:
    """The plugin, or None."""
    kind = _kind(group, name, template)
    return kind(registry.make_options(kind, options, field=field)) if kind is not None else None


def _kind(group: registry.Group, name: str, template: str) -> type[Any] | None:
    if name == NONE:
        return None
    if name != AUTO:
        return registry.load(group, name)
    return next((kind for kind in _loadable(group) if any(sign in template for sign in kind.signs)), None)


def _loadable(group: registry.Group) -> Iterator[type[Any]]:
    """Somebody's plugin that does not load is nobody's obstacle, unless it is named."""
    for name in registry.names(group):
        try:
            yield registry.load(group, name)
        except UserError:
            continue
