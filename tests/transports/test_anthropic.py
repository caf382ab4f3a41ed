"""``/v1/messages``: Anthropic's own SDK, its order of events, its errors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import pytest

pytest.importorskip("anthropic", reason="needs the extra `dev`")

import anthropic

from stepwell.core.instructions import Launch
from stepwell.core.parsing import ToolCall
from stepwell.core.protocols import StepResult
from stepwell.core.registry import make
from stepwell.sim.backend import EchoBackend
from stepwell.tests.transports.house import Call, client, idle, make_service, visit
from stepwell.transports.chat import Message
from stepwell.transports.errors import Refusal
from stepwell.transports.http.anthropic_shape import error_of, status_of

TOOLS: list[Any] = [
    {"name": "weather", "description": "Of a city.", "input_schema": {"type": "object"}},
    {"name": "time", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
]
PARSERS = {"tool_parser": "hermes", "reasoning_parser": "think"}
CALLS = make("tool_parsers", "hermes").write([ToolCall("weather", '{"city": "Zürich"}'), ToolCall("time", "{}")])
EVERYTHING = f"<think>\nHm.\n</think>\n\nLet me see.\n{CALLS}"


def sdk(http: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url="http://testserver", api_key="none", max_retries=0, http_client=http)


def body(content: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "echo", "max_tokens": 1000, "messages": [{"role": "user", "content": content}], **fields}


def events(text: str) -> list[tuple[str, Any]]:
    """Names and data of all events; that a name is the data's type is checked on the way."""
    found = []
    for frame in text.removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        assert found[-1][0] == found[-1][1]["type"]
    return found


def test_the_sdk_gets_text() -> None:
    service = make_service()
    with client(service) as http:
        for message in (
            sdk(http).messages.create(**body("grüß dich 🙂")),
            _streamed(http, **body("grüß dich 🙂")),
        ):
            assert [each.to_dict() for each in message.content] == [{"type": "text", "text": "grüß dich 🙂"}]
            assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "end_turn", None)
            usage = message.usage
            assert usage.output_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0) == 16
            assert message.id.startswith("msg_")
        assert idle(service)


def _streamed(http: Any, **fields: Any) -> anthropic.types.Message:
    with sdk(http).messages.stream(**fields) as stream:
        return stream.get_final_message()


def test_the_sdk_gets_thoughts_and_calls() -> None:
    with client(make_service(parsers=PARSERS)) as http:
        fields = body(EVERYTHING, tools=TOOLS)
        for message in (sdk(http).messages.create(**fields), _streamed(http, **fields)):
            assert message.stop_reason == "tool_use"
            blocks = [each.to_dict() for each in message.content]
            ids = [each.pop("id") for each in blocks if each["type"] == "tool_use"]
            assert len(set(ids)) == 2
            assert [{key: value for key, value in each.items() if key != "caller"} for each in blocks] == [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "name": "weather", "input": {"city": "Zürich"}},
                {"type": "tool_use", "name": "time", "input": {}},
            ]


def test_events_come_in_their_order() -> None:
    with client(make_service(parsers=PARSERS, step_us=500)) as http:
        answer = http.post("/v1/messages", json=body(EVERYTHING, tools=TOOLS, stream=True))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    found = events(answer.text)
    names = [name for name, _ in found if name != "content_block_delta"]
    block = ["content_block_start", "content_block_stop"]
    assert names == ["message_start", *block * 4, "message_delta", "message_stop"]
    assert "[DONE]" not in answer.text
    start = found[0][1]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert start["usage"]["output_tokens"] == 0
    places = [data["index"] for name, data in found if name.startswith("content_block")]
    assert places == sorted(places)
    kinds = [data["content_block"]["type"] for name, data in found if name == "content_block_start"]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    parts = [
        data["delta"]["partial_json"] for _, data in found if data.get("delta", {}).get("type") == "input_json_delta"
    ]
    assert "".join(parts) == '{"city": "Zürich"}{}'
    assert len(parts) > 2
    assert found[-2][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert found[-2][1]["usage"]["output_tokens"] == len(EVERYTHING.encode())


def test_a_silent_stream_is_pinged() -> None:
    service = make_service(step_us=200_000, server={"ping_s": 0.02})

    async def test(app: Any) -> None:
        call = Call("/v1/messages", body("ab", stream=True))
        await call.run(app)
        names = [name for name, _ in events(call.text)]
        assert "ping" in names
        assert next(name for name in names if name != "ping") == "message_start"
        assert ": keep-alive" not in call.text

    visit(service, test)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({"stop_sequences": ["ll", "zz"]}, "stop_sequence", "ll"),
        ({"max_tokens": 2}, "max_tokens", None),
        ({}, "end_turn", None),
    ],
)
def test_why_it_ended(stream: bool, fields: dict[str, Any], reason: str, sequence: str | None) -> None:
    with client(make_service()) as http:
        answer = http.post("/v1/messages", json=body(stream=stream) | fields)
        told = events(answer.text)[-2][1]["delta"] if stream else answer.json()
    assert (told["stop_reason"], told["stop_sequence"]) == (reason, sequence)


def test_a_full_context_says_so() -> None:
    service = make_service(lengths={1: 5000, 2: 5000}, memory={"pages": 5})
    with client(service) as http:
        reasons = [http.post("/v1/messages", json=body(max_tokens=most)).json()["stop_reason"] for most in (5000, 15)]
    assert reasons == ["model_context_window_exceeded", "max_tokens"]


def test_what_the_cache_had_is_no_input() -> None:
    service = make_service(lengths=dict.fromkeys(range(1, 9), 3), memory={"allocator": "prefix"})
    with client(service) as http:
        http.post("/v1/messages", json=body("x" * 12))
        for stream in (True, False):
            answer = http.post("/v1/messages", json=body("x" * 12, stream=stream))
            usage = events(answer.text)[0][1]["message"]["usage"] if stream else answer.json()["usage"]
            assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (4, 8)
            assert usage["cache_creation_input_tokens"] == 0


class Template:
    """Remembers what it was called with."""

    def __init__(self) -> None:
        self.messages: Sequence[Message] = ()
        self.arguments: Mapping[str, Any] = {}

    def __call__(self, messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
        self.messages, self.arguments = messages, arguments
        return list(b"okay")


def test_a_conversation_with_tools_reaches_the_template() -> None:
    template = Template()
    service = make_service(template=template, chat_template="{{ tools }}<tool_call>")
    cached = {"type": "ephemeral"}
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?", "cache_control": cached}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "a1", "name": "weather", "input": {"city": "Bern"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a1", "content": [{"type": "text", "text": "rain"}]},
                {"type": "text", "text": "And?"},
            ],
        },
    ]
    fields: dict[str, Any] = {
        "model": "echo",
        "messages": messages,
        "system": [{"type": "text", "text": "Be kind."}],
        "tools": TOOLS,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    with client(service) as http:
        sdk(http).messages.create(max_tokens=9, tool_choice={"type": "auto"}, **fields)
        function = {"name": "weather", "arguments": {"city": "Bern"}}
        assert template.messages == [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": "I look.",
                "reasoning_content": "Hm.",
                "tool_calls": [{"id": "a1", "type": "function", "function": function}],
            },
            {"role": "tool", "content": "rain", "tool_call_id": "a1", "name": "weather"},
            {"role": "user", "content": "And?"},
        ]
        assert template.arguments["enable_thinking"] is True
        assert template.arguments["tools"][0]["function"]["parameters"] == {"type": "object"}
        template.messages = ()
        assert sdk(http).messages.count_tokens(**fields).input_tokens == 4
        assert len(template.messages) == 5


def test_counting_has_no_limit_of_context_and_computes_nothing() -> None:
    service = make_service(memory={"pages": 5})
    with client(service) as http:
        messages: list[Any] = [{"role": "user", "content": "x" * 5000}]
        assert sdk(http).messages.count_tokens(model="echo", messages=messages).input_tokens == 5000
        with pytest.raises(anthropic.BadRequestError, match="context is 20 tokens"):
            sdk(http).messages.create(model="echo", max_tokens=5, messages=messages)
    assert service.metrics.accepted == 0


# ------------------------------------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, r"messages\[0\]?.role|messages.role"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "the last one must be the user's"),
        ({"temperature": "hot"}, "temperature"),
        ({"system": 7}, "system"),
        ({"system": [{"type": "image"}]}, r"system\[0\].type"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "much"}}, "thinking.type"),
    ],
)
def test_a_mistake_is_told_in_their_words(fields: dict[str, Any], told: str) -> None:
    with client(make_service(parsers=PARSERS)) as http:
        answer = http.post("/v1/messages", json=body() | fields)
        assert answer.status_code == 400
        error = answer.json()
        assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
        assert answer.headers["request-id"]
        with pytest.raises(anthropic.BadRequestError, match=told):
            sdk(http).post("/v1/messages", body=body() | fields, cast_to=object)


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ({"type": "image", "source": {}}, "messages[0].content[0].type"),
        ({"type": "text"}, "messages[0].content[0].text"),
        ({"type": "tool_result", "content": "x"}, "messages[0].content[0].tool_use_id"),
        ({"type": "tool_result", "tool_use_id": "a", "content": 7}, "messages[0].content[0].content"),
        ({"type": "tool_use", "id": "a", "name": "f", "input": {}}, "messages[0].content[0].type"),
    ],
)
def test_a_block_that_is_not_understood_is_named(block: Any, field: str) -> None:
    with client(make_service()) as http:
        answer = http.post("/v1/messages", json=body([block]))
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(field)


def test_another_model_is_not_found() -> None:
    with client(make_service()) as http, pytest.raises(anthropic.NotFoundError, match="there is no model 'claude'"):
        sdk(http).messages.create(model="claude", max_tokens=5, messages=[{"role": "user", "content": "x"}])


def test_a_server_without_room_is_overloaded() -> None:
    service = make_service()
    with client(service) as http:
        service.drain()
        with pytest.raises(anthropic.APIStatusError) as caught:
            sdk(http).messages.create(**body())
    assert caught.value.status_code == 529
    assert caught.value.response.headers["retry-after"]
    assert caught.value.response.json()["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize(
    ("status", "code", "theirs", "kind"),
    [
        (503, "draining", 529, "overloaded_error"),
        (429, "queue_full", 529, "overloaded_error"),
        (429, "rate_limit_exceeded", 429, "rate_limit_error"),
        (401, "invalid_api_key", 401, "authentication_error"),
        (403, "key_not_allowed", 403, "permission_error"),
        (413, "request_too_large", 413, "request_too_large"),
        (422, "x", 422, "invalid_request_error"),
        (500, "internal_error", 500, "api_error"),
    ],
)
def test_statuses(status: int, code: str, theirs: int, kind: str) -> None:
    refusal = Refusal(status, code, "why")
    assert status_of(refusal) == theirs
    assert error_of(refusal) == {"type": "error", "error": {"type": kind, "message": "why"}}


def test_a_failure_in_the_middle() -> None:
    class Breaks(EchoBackend):
        def execute(self, batch: Launch) -> StepResult:
            if batch.step == 4:
                raise RuntimeError("the driver is gone")
            return super().execute(batch)

    async def test(app: Any) -> None:
        call = Call("/v1/messages", body(stream=True))
        with anyio.fail_after(30):
            await call.run(app)
        last = events(call.text)[-1]
        assert last[0] == "error"
        assert last[1]["error"]["type"] == "api_error"
        assert "driver" not in call.text

    visit(make_service(backend=Breaks()), test, breaks=True)


def test_what_is_not_there_is_told_in_their_words_too() -> None:
    with client(make_service()) as http:
        for answer, status in ((http.get("/v1/messages"), 405), (http.post("/v1/messages/batches", json={}), 404)):
            told = answer.json()
            assert (answer.status_code, told["type"]) == (status, "error")
            assert set(told["error"]) == {"type", "message"}
            assert answer.headers["request-id"] == answer.headers["x-request-id"]
        assert http.get("/v1/messagesx").json()["error"]["code"] == "not_found"
