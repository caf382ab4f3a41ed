"""Calls of tools and reasoning in texts of every family: against a naive reading of the whole, and by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.core.parsing import MOST_HELD, ToolCall
from stepwell.core.registry import make
from stepwell.core.testing_parsing import Read, pieces_of, read, whole_calls, words
from stepwell.tests.reference.naive_parsing import NAIVE
from stepwell.transports.parsing.forced import forced_call, forced_calls

FAMILIES = sorted(NAIVE)
CALL = '{"name": "f", "arguments": {"a": 1}}'


def found(family: str, *pieces: str) -> Read:
    return read(make("tool_parsers", family).reader(), pieces)


def calls(family: str, *pieces: str) -> list[tuple[str, str]]:
    """Of an answer that is nothing but complete calls."""
    it = found(family, *pieces)
    assert it.content == ""
    assert all(complete for _, _, _, complete in it.calls)
    return [(name, arguments) for _, name, arguments, _ in it.calls]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40, deadline=None)
@given(calls=whole_calls(), before=words, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_what_a_naive_reading_of_the_whole_finds(
    family: str, calls: list[ToolCall], before: str, cuts: list[int]
) -> None:
    text = before + make("tool_parsers", family).write(calls)
    given = [(name, arguments) for _, name, arguments, _ in found(family, *pieces_of(text, cuts)).calls]
    # The reference looks for marks first, which may stand in arguments too.
    if not any(mark in call.arguments for call in calls for mark in make("tool_parsers", family).tokens):
        assert given == NAIVE[family](text)


# ------------------------------------------------------------------------------------------------ no calls


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n ",
        '{"answer": 42}',
        '{"name": 7, "arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "no object"}',
        '{"name": "f\\ud800", "arguments": {}}',
        '{"arguments": {"a": 1}}',
        '{"name": "f", "arguments"',
        '{"name" "f"}',
        "print('hello')",
        "[]",
        "[1, 2]",
    ],
)
@pytest.mark.parametrize("marked", [True, False])
def test_what_is_no_call_is_content_to_the_letter(family: str, text: str, marked: bool) -> None:
    begin = {"llama3": "<|python_tag|>", "mistral": "[TOOL_CALLS]", "deepseek": "<｜tool▁calls▁begin｜>"}
    text = (begin.get(family, "<tool_call>") if marked else "") + text
    assert found(family, *text) == Read(content=text)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_without_an_end_is_content_after_all(family: str) -> None:
    """However it is cut, and little is held."""
    parser = make("tool_parsers", family)
    begin = parser.write([ToolCall("f")]).partition("f")[0].removesuffix("<｜tool▁call▁begin｜>")
    text = begin + "f" * (MOST_HELD + 10)
    assert found(family, text) == Read(content=text)
    assert found(family, *pieces_of(text, range(0, len(text), 1000))) == Read(content=text)


def test_a_mark_that_came_to_nothing_hides_no_other() -> None:
    it = found("hermes", "<tool_call>well, <tool_call>" + CALL + "</tool_call>")
    assert (it.content, [each[1] for each in it.calls]) == ("<tool_call>well,", ["f"])


# ------------------------------------------------------------------------------------------------ calls, nearly right


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"arguments": {"a": "}"}, "name": "f"}', '{"a": "}"}'),
        ('{"name": "f", "arguments": "{\\"a\\": [1]}"}', '{"a": [1]}'),
        ('{"type": "function", "name": "f", "parameters": {"b": {}}}', '{"b": {}}'),
        ('{"name":"f","arguments":{"a":"\\\\"}}', '{"a":"\\\\"}'),
        ('{"name": "f", "arguments": {"s": "\\ud83d\\ude00 {[\\"]}"}, "id": "x"}', '{"s": "\\ud83d\\ude00 {[\\"]}"}'),
        ('{"name": "f", "arguments": {"a": not JSON}}', '{"a": not JSON}'),
    ],
)
def test_a_call_as_models_write_it(written: str, arguments: str) -> None:
    for text in (written, f"[{written}]", f" {written} ;{written}"):
        count = text.count('"name"')
        assert calls("hermes", *f"<tool_call>{text}</tool_call>") == [("f", arguments)] * count
        assert calls("llama3", *text) == [("f", arguments)] * count
        assert calls("llama3", *f"<|python_tag|>{text}") == [("f", arguments)] * count


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_is_cut_off_is_one_that_is_not_complete(family: str) -> None:
    text = make("tool_parsers", family).write([ToolCall("f", '{"a": {"b": "c'), ToolCall("g")])
    cut = text[: text.index("c") if family != "llama3" else text.index('"c') + 2]
    cut = text.partition('{"a": {"b": "c')[0] + '{"a": {"b": "c'
    assert found(family, *cut).calls == [("", "f", '{"a": {"b": "c', False)]


def test_what_follows_the_arguments_and_is_no_object_is_content() -> None:
    it = found("hermes", *'<tool_call>{"name": "f", "arguments": {}, oops</tool_call> and')
    assert (it.content, it.calls) == (", oops</tool_call> and", [("", "f", "{}", True)])


def test_text_between_calls() -> None:
    it = found("hermes", *f"A.\n<tool_call>\n{CALL}\n</tool_call>\nB.\n<tool_call>{CALL}</tool_call>\n\nC.")
    assert (it.content, len(it.calls)) == ("A.B.C.", 2)


def test_llama_s_code_is_content_and_json_later_on_is_too() -> None:
    assert found("llama3", *"<|python_tag|>import os") == Read(content="<|python_tag|>import os")
    text = f"Write {CALL}."
    assert found("llama3", *text) == Read(content=text)


def test_mistral_s_later_models() -> None:
    text = '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g.h[CALL_ID]abc123xyz[ARGS]{}[TOOL_CALLS]k{"b": 2}'
    assert [each[:3] for each in found("mistral", *text).calls] == [
        ("", "f", '{"a": 1}'),
        ("abc123xyz", "g.h", "{}"),
        ("", "k", '{"b": 2}'),
    ]


def test_deepseek_s_later_models() -> None:
    call = "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    text = f"Let me see.<｜tool▁calls▁begin｜>{call}{call}<｜tool▁calls▁end｜>"
    it = found("deepseek", *text)
    assert (it.content, [each[1:3] for each in it.calls]) == ("Let me see.", [("f", "{}")] * 2)


def test_answers_that_a_grammar_holds_to_calls() -> None:
    it = read(forced_call("f"), [*' {"a": "}"}\n'])
    assert (it.content, it.calls) == ("", [("", "f", '{"a": "}"}', True)])
    assert read(forced_call("f"), ["no"]) == Read(content="no")
    it = read(forced_calls(), [*f"[{CALL}, {CALL}]"])
    assert (it.content, [each[1] for each in it.calls]) == ("", ["f", "f"])
    assert read(forced_calls(), ["no"]) == Read(content="no")


# ------------------------------------------------------------------------------------------------ reasoning


def thoughts(text: str, *, inside: bool = False, **options: Any) -> tuple[str, str]:
    it = read(make("reasoning_parsers", "think", options).reader(inside=inside), [*text])
    return it.reasoning, it.content


def test_reasoning_with_and_without_its_first_mark() -> None:
    assert thoughts("<think>\nWhy?\n</think>\n\nSo.") == ("Why?", "So.")
    assert thoughts("\nWhy?\n</think>\n\nSo.", inside=True) == ("Why?", "So.")
    assert thoughts("Why?</think>So.", always=True) == ("Why?", "So.")
    assert thoughts("<think></think>So.") == ("", "So.")


def test_what_is_no_reasoning_is_left_alone() -> None:
    for text in ("So.", "So <think>not</think>.", " <thin", "</think>", "", " "):
        assert thoughts(text) == ("", text)


def test_cut_off_in_the_middle_it_is_reasoning() -> None:
    assert thoughts("<think>Why </thin") == ("Why </thin", "")
