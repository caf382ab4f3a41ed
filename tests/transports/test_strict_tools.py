"""Tools that are strict, and answers that are held to something beside tools: what of it becomes a grammar."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.tests.transports.house import chat, client, error_of, make_service
from stepwell.tests.transports.test_formats import Held, read

from stepwell.core.grammar import Grammar  # isort: skip
from stepwell.core.registry import make
from stepwell.transports.service import Service
from stepwell.transports.tool_grammar import Tool, Writing, calls_grammar

CITY = {"type": "object", "properties": {"city": {"enum": ["Bern"]}}, "required": ["city"]}
STRICT = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
FREE = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "required": ["zone"]}}}
ANSWER = {"type": "object", "properties": {"y": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": ANSWER}}


def house(**more: Any) -> tuple[Service, Held]:
    backend = Held()
    return make_service(
        **{"backend": backend, "read_grammar": read, "parsers": {"tool_parser": "hermes"}, **more}
    ), backend


def grammar_of(backend: Held) -> Grammar | None:
    """Of the one request that there was."""
    (sampling,) = backend.sampled.values()
    return sampling.grammar


def hermes(*tools: Tool, **more: Any) -> Grammar:
    parser = make("tool_parsers", "hermes")
    return calls_grammar(tools, Writing(shape=parser.shape(""), marks=parser.tokens), **more)


HELD: list[tuple[dict[str, Any], Grammar | None]] = [
    ({"tools": [FREE]}, None),
    ({"tools": [STRICT, FREE]}, hermes(Tool("weather", CITY), Tool("time"))),
    ({"tools": [STRICT], "parallel_tool_calls": False}, hermes(Tool("weather", CITY), several=False)),
    ({"tools": [STRICT], "tool_choice": "none"}, None),
    ({"tools": [FREE], "response_format": FORMAT}, hermes(Tool("time"), answer=ANSWER)),
    ({"tools": [STRICT], "response_format": FORMAT}, hermes(Tool("weather", CITY), answer=ANSWER)),
    ({"tools": [FREE], "structured_outputs": {"regex": "a+"}}, Grammar("regex", "a+")),
]


@pytest.mark.parametrize(("fields", "grammar"), HELD, ids=[str(index) for index in range(len(HELD))])
def test_what_is_strict_is_held_to_its_schema(fields: dict[str, Any], grammar: Grammar | None) -> None:
    service, backend = house()
    with client(service) as http:
        assert http.post("/v1/chat/completions", json=chat("hi", **fields)).status_code == 200
    assert grammar_of(backend) == grammar
    assert grammar is None or grammar in backend.prepared


def test_responses_and_messages_have_strict_tools_too() -> None:
    right = hermes(Tool("weather", CITY))
    flat = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}
    theirs = {"name": "weather", "input_schema": CITY, "strict": True}
    for path, body in (
        ("/v1/responses", {"input": "hi", "tools": [flat]}),
        ("/v1/messages", {"model": "echo", "max_tokens": 5, **chat("hi", tools=[theirs])}),
    ):
        service, backend = house()
        with client(service) as http:
            assert http.post(path, json=body).status_code == 200, path
        assert grammar_of(backend) == right


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": [STRICT], "structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
        ({"tools": [STRICT], "ignore_eos": True}, "ignore_eos"),
        ({"tools": [FREE], "tool_choice": "required", "response_format": FORMAT}, "response_format.json_schema.schema"),
        (
            {"tools": [FREE], "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": []}}},
            "response_format.json_schema.schema",
        ),
        ({"tools": [{"type": "function", "function": {"name": "bad", "strict": True}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "never", "strict": True}}]}, "tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "description": "x" * 99}}] * 64}
            | {"response_format": {"type": "json_schema", "json_schema": {"schema": {"title": "x" * (65 << 10)}}}},
            "response_format.json_schema.schema",
        ),
    ],
)
def test_in_4_what_cannot_be_is_a_400_that_names_it(fields: dict[str, Any], field: str) -> None:
    service, backend = house()
    with client(service) as http:
        status, _, named = error_of(http.post("/v1/chat/completions", json=chat("hi", **fields)))
    assert (status, named) == (400, field)
    assert not backend.sampled


def test_a_model_that_can_be_held_to_nothing_says_so() -> None:
    for service in (make_service(parsers={"tool_parser": "hermes"}),):
        with client(service) as http:
            response = http.post("/v1/chat/completions", json=chat("hi", tools=[STRICT]))
            assert error_of(response) == (400, "invalid_value", "tools")
            assert "cannot be held to a grammar" in response.json()["error"]["message"]


def test_a_family_that_tells_no_shape_says_so() -> None:
    service, backend = house()
    service.parsers.tools.shape = lambda template: None  # type: ignore[union-attr, method-assign]
    with client(service) as http:
        assert error_of(http.post("/v1/chat/completions", json=chat("hi", tools=[STRICT])))[0] == 400
        assert http.post("/v1/chat/completions", json=chat("hi", tools=[FREE])).status_code == 200
        assert (
            http.post("/v1/chat/completions", json=chat("hi", tools=[FREE], response_format=FORMAT)).status_code == 200
        )
    assert [each.grammar for each in backend.sampled.values()] == [
        None,
        Grammar("json", '{"type":"object","properties":{"y":{"type":"integer"}}}'),
    ]
