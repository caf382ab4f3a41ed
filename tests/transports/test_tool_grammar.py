"""Grammars of tools: what an answer that calls some of them may be, in the words of several families of models."""

from __future__ import annotations

import json

import pytest

from stepwell.tests.helpers.vocabularies import TOOL, grammars, spell

from stepwell.core.errors import UserError  # isort: skip
from stepwell.core.grammar import MAX_DEPTH, Grammar  # isort: skip
from stepwell.transports.tool_grammar import MAX_TOOLS, CallShape, Tool, calls_grammar

ADD = Tool(
    "add",
    {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False},
)
NOW = Tool("now")
HERMES = CallShape(before="<tool_call>\n", after="\n</tool_call>", between="\n")
LLAMA = CallShape(arguments_key="parameters", between="; ")
MISTRAL = CallShape(opening="<tool>[", between=", ", closing="]", special={"<tool>": TOOL})
DEEP = CallShape(before="function:", middle="\n```json\n", after="\n```", between="\n")
READY = grammars()


def call(name: str, **arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def hermes(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


def whole(grammar: Grammar, text: str) -> bool:
    """Whether ``text`` is an answer, from its beginning to its end."""
    first, *more = text.split("<tool>")
    tokens = spell(first.encode()) + [token for each in more for token in (TOOL, *spell(each.encode()))]
    assert grammar.depth <= MAX_DEPTH
    matcher = READY.compiled(grammar).deep_copy()
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


ONE, TWO = hermes(call("add", x=3)), hermes(call("add", x=3)) + "\n" + hermes(call("now", of=[1]))


@pytest.mark.parametrize(
    ("text", "required", "single", "free", "free_single"),
    [
        (ONE, True, True, True, True),
        (TWO, True, False, True, False),
        ("hello", False, False, True, True),
        ("a < b <tool", False, False, True, True),
        ("", False, False, True, True),
        ("hello " + ONE, False, False, True, True),
        ("hello " + ONE + " bye", False, False, True, False),
        (hermes(call("sub", x=3)), False, False, False, False),
        (hermes(call("add", x="3")), False, False, False, False),
        (hermes(call("add")), False, False, False, False),
        ("hi " + hermes(call("sub")), False, False, False, False),
        (ONE + "\n" + hermes(call("sub")), False, False, False, False),
    ],
)
def test_calls_between_marks(text: str, required: bool, single: bool, free: bool, free_single: bool) -> None:
    kinds = [(True, True), (True, False), (False, True), (False, False)]
    found = [whole(calls_grammar([ADD, NOW], HERMES, required=must, several=several), text) for must, several in kinds]
    assert found == [required, single, free, free_single]


def test_a_named_tool_is_a_list_of_one() -> None:
    grammar = calls_grammar([ADD], HERMES, several=False)
    assert whole(grammar, ONE)
    assert not whole(grammar, hermes(call("now")))


def test_calls_without_marks_are_told_from_text_by_how_they_begin() -> None:
    one = '{"name": "add", "parameters": {"x": 3}}'
    two = one + '; {"name": "now", "parameters": {}}'
    must, free = (calls_grammar([ADD, NOW], LLAMA, required=required) for required in (True, False))
    assert [whole(must, text) for text in (one, two, "hello", "")] == [True, True, False, False]
    assert [whole(free, text) for text in (one, two, "hello", "")] == [True, True, True, True]
    assert not whole(free, '{"name": "sub", "parameters": {}}')


def test_a_mark_may_be_a_token_that_is_no_text() -> None:
    two = f"<tool>[{call('add', x=3)}, {call('now')}]"
    must, free = (calls_grammar([ADD, NOW], MISTRAL, required=required) for required in (True, False))
    assert [whole(must, text) for text in (two, "hello")] == [True, False]
    assert [whole(free, text) for text in (two, "hello", "hi " + two)] == [True, True, True]
    assert not whole(free, "<tool>{")


def test_the_name_may_stand_before_the_arguments() -> None:
    one, two = 'function:add\n```json\n{"x": 3}\n```', "function:now\n```json\n{}\n```"
    grammar = calls_grammar([ADD, NOW], DEEP)
    assert [whole(grammar, text) for text in (one, two, f"{one}\n{two}", one.replace("add", "now ad"))] == [
        *(True, True, True),
        False,
    ]


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "ünï", "<b>", "a\nb"])
def test_a_name_is_a_name_whatever_is_in_it(name: str) -> None:
    assert whole(calls_grammar([Tool(name)], HERMES), hermes(call(name)))
    assert not whole(calls_grammar([Tool(name)], HERMES), hermes(call("other")))


@pytest.mark.parametrize("tools", [[], [ADD, ADD], [Tool(f"t{index}") for index in range(MAX_TOOLS + 1)]])
def test_a_list_that_is_none_is_refused(tools: list[Tool]) -> None:
    with pytest.raises(UserError) as caught:
        calls_grammar(tools, HERMES, field="tools")
    assert caught.value.field == "tools"
