"""Responses that call functions and think: each call, and what was thought, is an item with events of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from stepwell.core.parsing import ToolCall
from stepwell.core.registry import make
from stepwell.tests.transports.house import client, error_of, make_service
from stepwell.tests.transports.responding import URL, create, framed, text_of
from stepwell.tests.transports.test_formats import Held, read
from stepwell.transports.chat import Message

openai = pytest.importorskip("openai")

TOOLS = [
    {"type": "function", "name": "weather", "description": "Of a city.", "parameters": {"type": "object"}},
    {"type": "function", "name": "time", "parameters": {"type": "object"}},
]
CALLS = (ToolCall("weather", '{"city": "Rome", "days": 3}'), ToolCall("time", "{}"))


def written(family: str = "hermes") -> str:
    text: str = make("tool_parsers", family).write(CALLS)
    return text


def kinds(events: Sequence[Any], index: int) -> list[str]:
    """The types of an item's events, deltas once."""
    found = [each["type"].removeprefix("response.") for each in events if each.get("output_index") == index]
    return [kind for place, kind in enumerate(found) if found[place - 1 : place] != [kind]]


@pytest.mark.parametrize("family", ["hermes", "llama3", "mistral", "deepseek"])
def test_calls_are_items_streamed_argument_by_argument(family: str) -> None:
    service = make_service(parsers={"tool_parser": family}, memory={"pages": 4000})
    with client(service) as http:
        told = http.post(URL, json=create(written(family), tools=TOOLS)).json()
        items = [(each["type"], each["name"], json.loads(each["arguments"])) for each in told["output"]]
        assert items == [("function_call", each.name, json.loads(each.arguments)) for each in CALLS]
        assert told["status"] == "completed"
        assert [each["name"] for each in told["tools"]] == ["weather", "time"]
        assert told["tool_choice"] == "auto"
        events = framed(http.post(URL, json=create(written(family), tools=TOOLS, stream=True)).text)
        for index, call in enumerate(CALLS):
            assert kinds(events, index) == [
                "output_item.added",
                "function_call_arguments.delta",
                "function_call_arguments.done",
                "output_item.done",
            ]
            of_it = [each for each in events if each.get("output_index") == index]
            deltas = [each["delta"] for each in of_it if each["type"].endswith(".delta")]
            assert json.loads("".join(deltas)) == json.loads(call.arguments)
            assert of_it[-2]["arguments"] == "".join(deltas) == of_it[-1]["item"]["arguments"]
        assert [each["sequence_number"] for each in events] == list(range(len(events)))
        id = events[0]["response"]["id"]
        assert framed(http.get(f"{URL}/{id}?stream=true&starting_after=3").text) == events[4:]


def test_the_sdk_sees_words_and_calls() -> None:
    service = make_service(parsers={"tool_parser": "hermes"}, memory={"pages": 4000})
    with client(service) as http:
        sdk = openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=http, max_retries=0)
        with sdk.responses.stream(model="echo", input="Let me see. " + written(), tools=TOOLS) as stream:
            seen = [event.type for event in stream]
            final = stream.get_final_response()
        assert seen[-1] == "response.completed"
        assert [each.type for each in final.output] == ["message", "function_call", "function_call"]
        assert final.output_text == "Let me see."
        assert final.output[1].call_id != final.output[2].call_id


def test_what_is_thought_is_an_item_and_its_tokens_are_counted() -> None:
    service = make_service(parsers={"reasoning_parser": "think"}, memory={"pages": 4000})
    with client(service) as http:
        text = "<think>two and two</think>four"
        events = framed(http.post(URL, json=create(text, stream=True)).text)
        told = events[-1]["response"]
        assert [each["type"] for each in told["output"]] == ["reasoning", "message"]
        assert told["output"][0]["content"] == [{"type": "reasoning_text", "text": "two and two"}]
        assert text_of(told) == "four"
        assert 0 < told["usage"]["output_tokens_details"]["reasoning_tokens"] < told["usage"]["output_tokens"]
        assert kinds(events, 0) == [
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
        ]


def test_a_call_and_its_output_go_on_in_the_conversation() -> None:
    seen: list[tuple[Sequence[Message], Mapping[str, Any]]] = []

    def template(messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
        seen.append((messages, arguments))
        return list(str(messages[-1]["content"]).encode())

    service = make_service(
        template=template, parsers={"tool_parser": "hermes"}, chat_template="tools <tool_call>", memory={"pages": 4000}
    )
    with client(service) as http:
        first = http.post(URL, json=create(written(), tools=TOOLS, reasoning={"effort": "low"})).json()
        assert [each["function"]["name"] for each in seen[0][1]["tools"]] == ["weather", "time"]
        assert seen[0][1]["reasoning_effort"] == "low"
        outputs = [
            {"type": "function_call_output", "call_id": each["call_id"], "output": "fine"} for each in first["output"]
        ]
        second = http.post(URL, json=create(outputs, tools=TOOLS, previous_response_id=first["id"])).json()
        assert text_of(second) == "fine"
        question, called, *told = seen[1][0]
        assert question["role"] == "user"
        assert [each["function"]["name"] for each in called["tool_calls"]] == ["weather", "time"]
        assert [(each["role"], each["name"], each["content"]) for each in told] == [
            ("tool", "weather", "fine"),
            ("tool", "time", "fine"),
        ]
        assert [each["tool_call_id"] for each in told] == [each["id"] for each in called["tool_calls"]]
        without = http.post(URL, json=create(written(), tools=TOOLS, tool_choice="none")).json()
        assert text_of(without) == written()
        assert without["tool_choice"] == "none"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
    ids=str,
)
def test_in_4_a_wrong_tool_is_named(fields: dict[str, Any], field: str) -> None:
    with client(make_service(parsers={"tool_parser": "hermes"})) as http:
        assert error_of(http.post(URL, json=create(**fields))) == (400, "invalid_value", field)


def test_a_model_that_calls_no_tools_says_so() -> None:
    with client(make_service()) as http:
        assert error_of(http.post(URL, json=create(tools=TOOLS))) == (400, "invalid_value", "tools")


# ------------------------------------------------------------------------------------------------ OpenAI's SDK


def sdk_of(http: Any) -> Any:
    return openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=http, max_retries=0)


def last_words(messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
    """Says what was said last; what was told of a call, it tells on."""
    return list(str(messages[-1]["content"]).encode())


@pytest.mark.parametrize("family", ["hermes", "llama3", "mistral", "deepseek", "smollm2"])
def test_the_sdk_calls_a_function_and_goes_on_with_what_it_said(family: str) -> None:
    """The whole round: asked, streamed argument by argument, called, told, answered; by ``previous_response_id`` and by
    sending everything again."""
    service = make_service(template=last_words, parsers={"tool_parser": family}, memory={"pages": 8000})
    with client(service) as http:
        sdk = sdk_of(http)
        with sdk.responses.stream(model="echo", input=written(family), tools=TOOLS, store=True) as stream:
            pieces: dict[str, str] = {}
            done: dict[str, str] = {}
            for event in stream:
                if event.type == "response.function_call_arguments.delta":
                    pieces[event.item_id] = pieces.get(event.item_id, "") + event.delta
                elif event.type == "response.function_call_arguments.done":
                    done[event.item_id] = event.arguments
            first = stream.get_final_response()
        calls = [each for each in first.output if each.type == "function_call"]
        assert pieces == done == {each.id: each.arguments for each in calls}
        assert [(each.name, json.loads(each.arguments), each.status) for each in calls] == [
            (each.name, json.loads(each.arguments), "completed") for each in CALLS
        ]
        told: list[Any] = [
            {"type": "function_call_output", "call_id": each.call_id, "output": f"{each.name} is fine"}
            for each in calls
        ]
        second = sdk.responses.create(model="echo", input=told, tools=TOOLS, previous_response_id=first.id)
        whole: list[Any] = [{"role": "user", "content": written(family)}, *first.output, *told]
        again = sdk.responses.create(model="echo", input=whole, tools=TOOLS, store=False)
        assert second.output_text == again.output_text == "time is fine"
        items = list(sdk.responses.input_items.list(second.id, order="asc"))
        assert [each.type for each in items] == ["message", *["function_call"] * 2, *["function_call_output"] * 2]


def test_the_sdk_calls_functions_in_lanes_of_a_socket() -> None:
    service = make_service(parsers={"tool_parser": "hermes"}, memory={"pages": 8000})
    with client(service) as http, http.websocket_connect(URL) as socket:
        for lane in "ab":
            socket.send_json({"type": "response.create", "stream_id": lane, **create(written(), tools=TOOLS)})
        found: dict[str, list[Any]] = {"a": [], "b": []}
        while not all(events and events[-1]["type"] == "response.completed" for events in found.values()):
            event = socket.receive_json()
            found[event["stream_id"]].append(event)
    for events in found.values():
        deltas = [each for each in events if each["type"] == "response.function_call_arguments.delta"]
        for index, call in enumerate(CALLS):
            said = "".join(each["delta"] for each in deltas if each["output_index"] == index)
            assert json.loads(said) == json.loads(call.arguments)


@pytest.mark.parametrize(
    ("choice", "parallel", "answer", "names"),
    [
        ({"type": "function", "name": "time"}, None, '{"zone": "CET"}', ["time"]),
        (
            "required",
            None,
            '[{"name": "weather", "parameters": {}}, {"name": "time", "parameters": {}}]',
            ["weather", "time"],
        ),
        ("required", False, '[{"name": "weather", "parameters": {}}]', ["weather"]),
        ("auto", False, written(), ["weather"]),
    ],
    ids=["named", "required", "required-one", "auto-one"],
)
def test_tool_choice_decides_what_is_called(choice: Any, parallel: bool | None, answer: str, names: list[str]) -> None:
    """The model says what the grammar would hold it to; what is told of the choice is what was asked."""
    service = make_service(backend=Held(), read_grammar=read, parsers={"tool_parser": "hermes"}, memory={"pages": 8000})
    with client(service) as http:
        more = {} if parallel is None else {"parallel_tool_calls": parallel}
        told = sdk_of(http).responses.create(model="echo", input=answer, tools=TOOLS, tool_choice=choice, **more)
    assert [each.name for each in told.output] == names
    shown = told.tool_choice if isinstance(told.tool_choice, str) else told.tool_choice.model_dump()
    assert shown == choice
    assert told.parallel_tool_calls is (parallel is not False)


def test_a_call_that_is_cut_off_is_incomplete_and_so_is_the_response() -> None:
    service = make_service(parsers={"tool_parser": "hermes"}, memory={"pages": 8000})
    with client(service) as http:
        events = framed(http.post(URL, json=create(written(), tools=TOOLS, max_output_tokens=60, stream=True)).text)
    last = events[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    (item,) = last["response"]["output"]
    assert (item["type"], item["status"]) == ("function_call", "incomplete")
    assert CALLS[0].arguments.startswith(item["arguments"])
