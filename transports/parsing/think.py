"""Reasoning before the answer: ``<think>…</think>``, of which the first may have been the prompt's last word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from stepwell.core.parsing import Reasoning, Said
from stepwell.transports.parsing.content import blank, rest, upto
from stepwell.transports.parsing.source import Machine, NoCall, Reads, Source


class Think:
    """See ``core.parsing.ReasoningParser``."""

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        always: bool = False
        """The model reasons although neither the prompt nor its answer says where that begins."""

    name: ClassVar[str] = "think"
    signs: ClassVar[Sequence[str]] = ("<think>", "</think>")
    tokens: ClassVar[Sequence[str]] = ("<think>", "</think>")

    def __init__(self, options: Options) -> None:
        self._always = options.always

    def begins(self, prompt: str) -> bool:
        return prompt.rstrip().endswith(self.tokens[0])

    def reader(self, *, inside: bool = False) -> Thoughts:
        return Thoughts(*self.tokens, inside=inside or self._always)


class MistralThink:
    """The same of Mistral's models, between marks of theirs."""

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        always: bool = False
        """As of ``Think``."""

    name: ClassVar[str] = "mistral"
    signs: ClassVar[Sequence[str]] = ("[THINK]",)
    tokens: ClassVar[Sequence[str]] = ("[THINK]", "[/THINK]")

    def __init__(self, options: Options) -> None:
        self._always = options.always

    def begins(self, prompt: str) -> bool:
        return prompt.rstrip().endswith(self.tokens[0])

    def reader(self, *, inside: bool = False) -> Thoughts:
        return Thoughts(*self.tokens, inside=inside or self._always)


class Thoughts:
    """Reasoning between two marks, at the beginning of an answer; all else is content."""

    def __init__(self, begin: str, end: str, *, inside: bool) -> None:
        self.inside = inside
        self.over = False
        self._marks = begin, end
        self._machine = Machine(self._grammar)

    @property
    def held(self) -> int:
        return self._machine.held

    def feed(self, text: str) -> list[Said]:
        return self._machine.feed(text)

    def finish(self) -> list[Said]:
        return self._machine.finish()

    def _grammar(self, source: Source) -> Reads[None]:
        begin, end = self._marks
        self.inside = self.inside or (yield from _begins(source, begin))
        ended = False
        if self.inside:
            source.drop()
            yield from blank(source)
            ended = bool((yield from upto(source, (end,), kind=Reasoning)))
            self.inside = False
            source.drop()
            if ended:
                yield from blank(source)
        self.over = True
        yield from rest(source)


def _begins(source: Source, begin: str) -> Reads[bool]:
    try:
        yield from source.white()
        found = yield from source.takes(begin)
    except NoCall:  # much white space
        found = False
    source.at = source.at if found else 0
    return found
