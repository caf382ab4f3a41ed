"""Every registered parser, the built-ins among them, keeps the rules of ``core.parsing``; others are caught."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar

import pytest

from stepwell.core.parsing import CallArguments, CallBegan, CallEnded, CallShape, Content, Said, ToolCall
from stepwell.core.testing import ConformanceError, check_reasoning_parser, check_tool_parser
from stepwell.transports.parsing.hermes import Hermes
from stepwell.transports.parsing.think import Think


def registered(group: str) -> list[EntryPoint]:
    return sorted(entry_points(group=f"stepwell.{group}"), key=lambda entry: entry.name)


def test_the_built_in_parsers_are_registered() -> None:
    names = {entry.name for entry in registered("tool_parsers")}
    assert {"hermes", "llama3", "mistral", "deepseek", "smollm2"} <= names
    assert {"think", "mistral"} <= {entry.name for entry in registered("reasoning_parsers")}


@pytest.mark.parametrize("entry", registered("tool_parsers"), ids=lambda entry: entry.name)
def test_a_tool_parser_conforms(entry: EntryPoint) -> None:
    kind: Any = entry.load()
    assert kind.name == entry.name
    check_tool_parser(lambda: kind(kind.Options()), examples=25)


@pytest.mark.slow
@pytest.mark.parametrize("entry", registered("tool_parsers"), ids=lambda entry: entry.name)
def test_a_tool_parser_conforms_at_length(entry: EntryPoint) -> None:
    kind: Any = entry.load()
    check_tool_parser(lambda: kind(kind.Options()), examples=1000)


@pytest.mark.parametrize("entry", registered("reasoning_parsers"), ids=lambda entry: entry.name)
def test_a_reasoning_parser_conforms(entry: EntryPoint) -> None:
    kind: Any = entry.load()
    assert kind.name == entry.name
    check_reasoning_parser(lambda: kind(kind.Options()), examples=25)


# ------------------------------------------------------------------------------------------------ who is caught


class Broken:
    """A reader that is right, but for what a subclass spoils."""

    def __init__(self) -> None:
        self.inner = Hermes(Hermes.Options()).reader()

    @property
    def held(self) -> int:
        return self.inner.held

    def feed(self, text: str) -> list[Said]:
        return self.inner.feed(text)

    def finish(self) -> list[Said]:
        return self.inner.finish()


class Family:
    """Hermes with another reader."""

    name: ClassVar[str] = Hermes.name
    signs: ClassVar[Sequence[str]] = Hermes.signs
    tokens: ClassVar[Sequence[str]] = Hermes.tokens

    def __init__(self, reader: type[Broken], shape: CallShape | None = None) -> None:
        inner = Hermes(Hermes.Options())
        self.reader = reader
        self.write, self.instructions = inner.write, inner.instructions
        self._shape = shape

    def shape(self, template: str) -> CallShape | None:
        return self._shape


class EachPieceAlone(Broken):
    def feed(self, text: str) -> list[Said]:
        return [*self.inner.feed(text), *self.inner.finish()] if self._fresh() else []

    def _fresh(self) -> bool:
        self.inner = Hermes(Hermes.Options()).reader()
        return True

    def finish(self) -> list[Said]:
        return []


class WaitsForTheEnd(Broken):
    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def feed(self, text: str) -> list[Said]:
        self.text += text
        return []

    def finish(self) -> list[Said]:
        return [*self.inner.feed(self.text), *self.inner.finish()]


class LosesWhatIsHeld(Broken):
    def finish(self) -> list[Said]:
        return [each for each in self.inner.finish() if not isinstance(each, Content)]


class ForgetsTheEnd(Broken):
    def feed(self, text: str) -> list[Said]:
        return [each for each in self.inner.feed(text) if not isinstance(each, CallEnded)]


class RepairsArguments(Broken):
    def feed(self, text: str) -> list[Said]:
        said = self.inner.feed(text)
        return [CallArguments(each.text.strip()) if isinstance(each, CallArguments) else each for each in said]


class OtherNames(Broken):
    def feed(self, text: str) -> list[Said]:
        said = self.inner.feed(text)
        return [CallBegan(each.name.lower()) if isinstance(each, CallBegan) else each for each in said]


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (EachPieceAlone, "in the pieces"),
        (WaitsForTheEnd, r"it says \[\] with the second"),
        (LosesWhatIsHeld, "has no calls, and its content is|the content of"),
        (ForgetsTheEnd, "inside a call|never ends"),
        (RepairsArguments, "in the pieces|it finds"),
        (OtherNames, "it finds"),
    ],
)
def test_broken_ones_are_caught(broken: type[Broken], told: str) -> None:
    with pytest.raises(ConformanceError, match=told):
        check_tool_parser(lambda: Family(broken), examples=60)


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        (CallShape(mark="<tool_call>", before="["), "do not begin with its mark"),
        (CallShape(mark="<call>", before="<call>", after="</call>"), "is of its shape"),
    ],
)
def test_a_shape_that_its_own_reader_does_not_read_is_caught(shape: CallShape, told: str) -> None:
    with pytest.raises(ConformanceError, match=told):
        check_tool_parser(lambda: Family(Broken, shape), examples=1)


def test_one_that_is_not_broken_passes() -> None:
    check_tool_parser(lambda: Family(Broken), examples=30)


def test_reasoning_that_begins_by_itself_is_caught() -> None:
    always = Think.Options(always=True)
    with pytest.raises(ConformanceError):
        check_reasoning_parser(lambda: Think(always), examples=30)


def test_a_call_is_read_as_it_is_written() -> None:
    """The least that there is, by hand."""
    family = Hermes(Hermes.Options())
    reader = family.reader()
    said = [*reader.feed("Sure.\n" + family.write([ToolCall("f", '{"a": 1}')]) + "\nDone."), *reader.finish()]
    call = [CallBegan("f"), CallArguments('{"a": 1}'), CallEnded()]
    assert said == [Content("Sure."), *call, Content("Done.")]
