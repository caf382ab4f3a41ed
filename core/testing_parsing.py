"""The conformance suites of parsers: is what they find the same however a text is cut, and is nothing lost?

from stepwell.core.testing import check_tool_parser

def test_mine():
    check_tool_parser(lambda: Mine(Mine.Options()))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stepwell.core.parsing import (
    MOST_HELD,
    AnswerReader,
    CallArguments,
    CallBegan,
    CallEnded,
    Content,
    Reasoning,
    ReasoningParser,
    Said,
    ToolCall,
    ToolParser,
)
from stepwell.core.testing_play import ConformanceError

MOST_LAG = 64
"""Letters of a call's arguments that may be held back once it began."""


class Read(msgspec.Struct):
    """What came of one text."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str, str, bool]] = []
    """Id, name, arguments, and whether they are complete."""


tricky = st.text(st.one_of(st.sampled_from('{}[]"\\:,;`<>|/ \n\t'), st.characters(codec="utf-8")), max_size=12)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), tricky),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(tricky, inner, max_size=3)),
    max_leaves=6,
)
objects = st.dictionaries(tricky, values, max_size=4)
names = st.from_regex(r"[a-z][A-Za-z0-9_]{0,15}", fullmatch=True)


@st.composite
def whole_calls(draw: st.DrawFn, least: int = 1) -> list[ToolCall]:
    """Calls with arguments of every kind, their JSON in ASCII or not, spaced or not."""

    def one() -> ToolCall:
        text = json.dumps(
            draw(objects), ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, None, 1]))
        )
        return ToolCall(draw(names), text)

    return [one() for _ in range(draw(st.integers(least, 3)))]


words = st.text(st.sampled_from("abc öß猫🙂\n .,"), max_size=20)
"""Text in which there is no mark."""


def pieces_of(text: str, cuts: Sequence[int]) -> list[str]:
    """``text`` cut at those places, modulo its length."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


cuts = st.one_of(st.lists(st.integers(0, 400), max_size=12), st.just(range(2000)))


def read(parser: AnswerReader, pieces: Sequence[str]) -> Read:
    """Feed it, and look at each thing that it says."""
    found = Read()
    open_call = False
    for piece in [*pieces, None]:
        said = parser.finish() if piece is None else parser.feed(piece)
        for each in said:
            open_call = _hear(found, each, open_call)
        if parser.held > MOST_HELD + len(piece or ""):
            raise ConformanceError(f"holds {parser.held} letters back")
        if open_call and parser.held > MOST_LAG:
            raise ConformanceError(f"holds {parser.held} letters of arguments back")
    if open_call:
        raise ConformanceError(f"the call of {found.calls[-1][1]!r} never ends")
    return found


def _hear(found: Read, said: Said, open_call: bool) -> bool:
    if open_call != isinstance(said, CallArguments | CallEnded):
        raise ConformanceError(f"says {said!r} {'inside' if open_call else 'outside'} a call")
    if isinstance(said, CallBegan):
        found.calls.append((said.id, said.name, "", False))
        return True
    if isinstance(said, CallArguments):
        id, name, before, complete = found.calls[-1]
        found.calls[-1] = (id, name, before + said.text, complete)
    elif isinstance(said, CallEnded):
        found.calls[-1] = (*found.calls[-1][:3], said.complete)
        return False
    elif isinstance(said, Reasoning):
        found.reasoning += said.text
    else:
        found.content += said.text
    return open_call


def alike(make: Callable[[], AnswerReader], text: str, cuts: Sequence[int]) -> Read:
    """What is found in ``text``; raises ``ConformanceError`` if cutting it makes a difference."""
    whole, cut = read(make(), [text]), read(make(), pieces_of(text, cuts))
    if whole != cut:
        raise ConformanceError(f"{text!r} is {whole}, and in the pieces {pieces_of(text, cuts)} it is {cut}")
    if not within(whole.content, text):
        raise ConformanceError(f"the content {whole.content!r} of {text!r} is not in it in that order")
    return whole


def kept(make: Callable[[], AnswerReader], text: str, cuts: Sequence[int]) -> Read:
    """The same, and without calls it is content to the letter."""
    found = alike(make, text, cuts)
    if not found.calls and found.content != text:
        raise ConformanceError(f"{text!r} has no calls, and its content is {found.content!r}")
    return found


def within(part: str, text: str) -> bool:
    """Whether the letters of ``part`` are those of ``text`` without some."""
    rest = iter(text)
    return all(letter in rest for letter in part)


def _bare(text: str) -> str:
    return "".join(text.split())


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


def noise_of(marks: Sequence[str]) -> st.SearchStrategy[str]:
    """Marks, parts of marks, JSON and words in any order."""
    parts = [mark[:size] for mark in marks for size in {1, len(mark) // 2, len(mark) - 1, len(mark)}]
    bits = [
        '{"name": "f", "arguments": {"a": [1]}}',
        '{"name": "g"',
        ', "parameters": {',
        '"x": "\\"}"',
        "}",
        "{",
        "[",
        "]",
    ]
    bits += [",", ";", "```json\n", "```", "f\n", "function", " ", "\n", "word", '{"a": 1}', '"arguments": "{}"', "\\"]
    return st.lists(st.sampled_from([*parts, *marks, *bits, *bits]), max_size=14).map("".join)


def check_tool_parser(make: Callable[[], ToolParser], *, examples: int = 100) -> None:
    """Raises ``ConformanceError`` with the smallest text found on which it breaks the rules of ``core.parsing``."""
    parser = make()
    reader, chosen = parser.reader, _settings(examples)
    passes_words(reader)
    _check_shape(parser)

    @chosen
    @given(whole_calls(), words, words, cuts)
    def reads_what_is_written(calls: list[ToolCall], before: str, after: str, cuts: Sequence[int]) -> None:
        text = before + parser.write(calls) + ("and " + after if after else "")
        found = kept(reader, text, cuts)
        if [each[1:] for each in found.calls] != [(each.name, each.arguments, True) for each in calls]:
            raise ConformanceError(f"{text!r} has the calls {calls}, and it finds {found.calls}")
        if _bare(found.content) != _bare(before + ("and " + after if after else "")):
            raise ConformanceError(f"the content of {text!r} is {found.content!r}")

    @chosen
    @given(whole_calls(), words, st.integers(0, 2000), cuts)
    def reads_the_beginning(calls: list[ToolCall], before: str, size: int, cuts: Sequence[int]) -> None:
        text = (before + parser.write(calls))[:size]
        for (_, name, given_text, complete), call in zip(kept(reader, text, cuts).calls, calls, strict=False):
            same = given_text == call.arguments if complete else call.arguments.startswith(given_text)
            if name != call.name or not same:
                raise ConformanceError(f"in {text!r} it finds {name}({given_text}) for {call}")

    @chosen
    @given(noise_of([*parser.tokens, *parser.signs]), cuts)
    def bears_noise(text: str, cuts: Sequence[int]) -> None:
        kept(reader, text, cuts)

    @chosen
    @given(tricky, cuts)
    def bears_anything(text: str, cuts: Sequence[int]) -> None:
        kept(reader, text, cuts)

    for law in (reads_what_is_written, reads_the_beginning, bears_noise, bears_anything):
        law()


def _check_shape(parser: ToolParser) -> None:
    """Calls in the shape that grammars hold them to are read, for whatever templates its models have."""
    calls = [ToolCall("f", '{"a": [1, "}"]}'), ToolCall("g")]
    for template in ("", *parser.signs, *parser.tokens, " ".join(parser.tokens), "```json"):
        shape = parser.shape(template)
        if shape is None:
            continue
        if not (shape.opening + shape.before).startswith(shape.mark):
            raise ConformanceError(f"calls of the shape {shape} do not begin with its mark")
        text = shape.written(calls)
        found = read(parser.reader(), [text])
        if found.content or [each[1:] for each in found.calls] != [(each.name, each.arguments, True) for each in calls]:
            raise ConformanceError(f"{text!r} is of its shape, and it finds {found}")


def passes_words(make: Callable[[], AnswerReader]) -> None:
    """A word in which no mark begins is there at once, and a head without an end is content after all."""
    parser = make()
    parser.feed("well, ")
    said = parser.feed("hello")
    if [each for each in said if isinstance(each, Content)] != said or not said or parser.held:
        raise ConformanceError(
            f"of 'well, ' and 'hello' it says {said} with the second, and holds {parser.held} letters"
        )


def check_reasoning_parser(make: Callable[[], ReasoningParser], *, examples: int = 100) -> None:
    """The same for ``ReasoningParser``.  Its first two ``tokens`` are the marks around the reasoning."""
    parser = make()
    begin, end = parser.tokens[:2]
    chosen = _settings(examples)

    @chosen
    @given(st.booleans(), words, words, st.sampled_from(["", " ", "\n\n"]), cuts)
    def parts_them(inside: bool, thought: str, answer: str, white: str, cuts: Sequence[int]) -> None:
        text = ("" if inside else white + begin) + white + thought + white + end + white + answer
        found = alike(lambda: parser.reader(inside=inside), text, cuts)
        if (found.reasoning, found.content) != (thought.strip(), answer.lstrip()):
            raise ConformanceError(f"{text!r} (inside: {inside}) is {found}")

    @chosen
    @given(words, cuts)
    def needs_no_end(thought: str, cuts: Sequence[int]) -> None:
        found = alike(lambda: parser.reader(inside=True), thought, cuts)
        if found.content or found.reasoning != thought.lstrip():
            raise ConformanceError(f"{thought!r}, cut off in reasoning, is {found}")

    @chosen
    @given(st.booleans(), noise_of([begin, end]), cuts)
    def bears_noise(inside: bool, text: str, cuts: Sequence[int]) -> None:
        found = alike(lambda: parser.reader(inside=inside), text, cuts)
        if found.calls:
            raise ConformanceError(f"{text!r} is reasoning or content, and it says {found.calls}")

    @chosen
    @given(words)
    def says_when_it_is_over(text: str) -> None:
        reader = parser.reader(inside=False)
        reader.feed("so" + text)
        if not reader.over or reader.inside or reader.held:
            raise ConformanceError(f"'so' begins no reasoning, and it is not over after {text!r}")

    for law in (parts_them, needs_no_end, bears_noise, says_when_it_is_over):
        law()
    if not parser.begins(f"words {begin}\n") or parser.begins(f"{begin} words"):
        raise ConformanceError(f"a prompt begins the reasoning if and only if {begin!r} is its last word")
