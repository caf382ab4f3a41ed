"""Grammars of tools: what an answer that may call some of them is held to, in the words of several families."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from stepwell.tests.helpers.vocabularies import TOOL, grammars, spell

from stepwell.core.grammar import MAX_DEPTH, Grammar  # isort: skip
from stepwell.core.parsing import ToolCall  # isort: skip
from stepwell.core.registry import make  # isort: skip
from stepwell.core.testing_parsing import read  # isort: skip
from stepwell.transports.tool_grammar import Tool, Writing, calls_grammar  # isort: skip

ADD = Tool(
    "add",
    {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False},
)
NOW = Tool("now")
READY = grammars()
FAMILIES = ["hermes", "llama3", "mistral", "deepseek", "smollm2"]


def writing(family: str, template: str = "", special: Mapping[str, int] | None = None, think: bool = False) -> Writing:
    parser = make("tool_parsers", family)
    return Writing(
        shape=parser.shape(template),
        marks=parser.tokens,
        thoughts=("<think>", "</think>") if think else (),
        special=special or {},
    )


def whole(grammar: Grammar, text: str, special: Mapping[str, int] | None = None) -> bool:
    """Whether ``text`` is an answer, from its beginning to its end."""
    assert grammar.depth <= MAX_DEPTH
    names = special or {}
    pieces = re.split("(" + "|".join(map(re.escape, names)) + ")", text) if names else [text]
    tokens = [token for each in pieces for token in ([names[each]] if each in names else spell(each.encode()))]
    matcher = READY.compiled(grammar).deep_copy()
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def calls(family: str, *made: tuple[str, str], template: str = "") -> str:
    text: str = make("tool_parsers", family).shape(template).written([ToolCall(*each) for each in made])
    return text


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("think", [False, True])
@pytest.mark.parametrize("special", [False, True])
def test_calls_keep_to_the_tools_and_text_is_free(family: str, think: bool, special: bool) -> None:
    parser = make("tool_parsers", family)
    names = {parser.shape("").mark: TOOL} if special and parser.shape("").mark else {}
    grammar = calls_grammar([ADD, NOW], writing(family, special=names, think=think))

    def fits(text: str) -> bool:
        return whole(grammar, text, names)

    one, two = calls(family, ("add", '{"x": 3}')), calls(family, ("add", '{"x": 3}'), ("now", '{"of": [1]}'))
    assert [fits(text) for text in ("", "hello", " a < b <tool", one, two)] == [True] * 5
    if parser.shape("").mark:
        assert fits("hello " + two)
        assert fits(two + "\nbye")
    for bad in (("sub", '{"x": 3}'), ("add", '{"x": "3"}'), ("add", "{}"), ("now", "[]")):
        assert not fits(calls(family, bad))
        assert not fits(calls(family, ("now", "{}"), bad))
        assert not fits("hello " + calls(family, bad)) or not parser.shape("").mark
    if think:
        for before in ("<think>Why {?</think>", "Why?\n</think>\n\n"):
            assert [fits(before + text) for text in ("", "So.", one, two)] == [True] * 4
            assert not fits(before + calls(family, ("sub", "{}")))


@pytest.mark.parametrize("family", FAMILIES)
def test_at_most_one_call(family: str) -> None:
    grammar = calls_grammar([ADD, NOW], writing(family), several=False)
    assert [whole(grammar, text) for text in ("hello", calls(family, ("now", "{}")))] == [True, True]
    assert not whole(grammar, calls(family, ("now", "{}"), ("now", "{}")))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("special", [False, True])
def test_an_answer_that_is_held_to_a_schema_anyway(family: str, special: bool) -> None:
    parser = make("tool_parsers", family)
    names = {parser.shape("").mark: TOOL} if special and parser.shape("").mark else {}
    schema = {"type": "object", "properties": {"y": {"type": "integer"}}, "required": ["y"]}
    grammar = calls_grammar([ADD], writing(family, special=names, think=True), answer=schema)
    good = ('{"y": 1}', calls(family, ("add", '{"x": 3}')), '<think>hm</think>\n{"y": 1}')
    bad = ("hello", "{}", calls(family, ("add", "{}")), '{"y": 1}' + calls(family, ("add", '{"x": 3}')))
    assert [whole(grammar, text, names) for text in (*good, *bad)] == [True] * len(good) + [False] * len(bad)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "sub", "arguments": {}}</tool_call>',
        '<tool_call> \n[{"name": "add", "arguments": {"x": "3"}}]</tool_call>',
        ' {"name": "sub", "parameters": {}}',
        '\n[{"name": "sub", "parameters": {}}]',
        '<|python_tag|>{"name": "sub", "parameters": {}}',
        '[TOOL_CALLS]sub[ARGS]{"x": 3}',
        '[TOOL_CALLS] [{"name": "sub", "arguments": {}}]',
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>sub<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ],
)
@pytest.mark.parametrize("special", [False, True])
def test_what_a_reader_would_take_for_a_wrong_call_cannot_be_said(family: str, text: str, special: bool) -> None:
    """However it is written: the reader is more lenient than the shape."""
    parser = make("tool_parsers", family)
    names = {parser.shape("").mark: TOOL} if special and parser.shape("").mark else {}
    found = read(parser.reader(), [text]).calls
    grammar = calls_grammar([ADD, NOW], writing(family, special=names))
    if found:
        assert not whole(grammar, text, names)
        assert not whole(grammar, text)  # a mark that is a token may be spelled, too


@pytest.mark.parametrize(
    ("family", "template", "text"),
    [
        ("mistral", "[ARGS]", '[TOOL_CALLS]add[ARGS]{"x": 3}[TOOL_CALLS]now[ARGS]{}'),
        ("mistral", "", '[TOOL_CALLS][{"name": "add", "arguments": {"x": 3}}, {"name": "now", "arguments": {}}]'),
        ("deepseek", "```json", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"),
        ("deepseek", "", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
    ],
)
def test_a_family_s_models_write_as_their_templates_tell(family: str, template: str, text: str) -> None:
    if family == "deepseek":
        text = f"<｜tool▁calls▁begin｜>{text}<｜tool▁calls▁end｜>"
    assert whole(calls_grammar([ADD, NOW], writing(family, template)), text)


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "ünï", "<b>", "a\nb"])
def test_a_name_is_a_name_whatever_is_in_it(name: str) -> None:
    grammar = calls_grammar([Tool(name)], writing("hermes"))
    assert whole(grammar, calls("hermes", (name, "{}")))
    assert not whole(grammar, calls("hermes", ("other", "{}")))


def test_a_schema_s_own_definitions_are_found() -> None:
    inner = {"type": "object", "properties": {"z": {"type": "integer"}}, "required": ["z"]}
    outer = {"type": "object", "properties": {"at": {"$ref": "#/$defs/In"}}, "required": ["at"], "$defs": {"In": inner}}
    for family in FAMILIES:
        grammar = calls_grammar([Tool("f", outer), Tool("g", outer)], writing(family))
        assert whole(grammar, calls(family, ("g", '{"at": {"z": 1}}')))
        assert not whole(grammar, calls(family, ("g", '{"at": {"z": "1"}}')))


def test_what_a_schema_asks_of_llguidance_stays() -> None:
    schema = {
        "type": "object",
        "x-guidance": {"lenient": True},
        "properties": {"x": {"type": "string", "format": "odd"}},
    }
    assert whole(calls_grammar([Tool("f", schema)], writing("hermes")), calls("hermes", ("f", '{"x": "y"}')))
