"""A real model behind a real server, asked to call tools by both SDKs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepwell.tests.e2e.serving import PATIENCE_S, serving
from stepwell.tests.helpers.small_model import needs_small_model

for needed in ("anthropic", "jsonschema"):
    pytest.importorskip(needed, reason="needs the extra `dev`")

import anthropic  # noqa: E402
import jsonschema  # noqa: E402
from openai import OpenAI  # noqa: E402

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.slow
def test_smollm2_is_asked_to_call_a_tool() -> None:
    """What a model of this size answers is its own affair; nothing of it is lost, and all agree on what it cost."""
    needs_small_model()
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Bern?"}]
    small = ("--deterministic", "--set", "memory.pages=256", "--set", "memory.host_pages=0")
    function = {"name": "weather", "description": "The weather of a city.", "parameters": SCHEMA}
    with (
        serving("--model", "smollm2", *small, cost=False) as server,
        OpenAI(base_url=server.url, api_key="none", timeout=4 * PATIENCE_S, max_retries=0) as client,
        anthropic.Anthropic(
            base_url=server.url.removesuffix("/v1"), api_key="none", timeout=4 * PATIENCE_S, max_retries=0
        ) as other,
    ):
        asked: dict[str, Any] = {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 16}
        tools: list[Any] = [{"type": "function", "function": function}]
        whole = client.chat.completions.create(**asked, tools=tools)
        chunks = list(
            client.chat.completions.create(**asked, tools=tools, stream=True, stream_options={"include_usage": True})
        )
        theirs: Any = {"name": "weather", "description": function["description"], "input_schema": SCHEMA}
        message = other.messages.create(
            model="smollm2", messages=messages, max_tokens=16, tools=[theirs], extra_body={"temperature": 0}
        )
        plain = client.chat.completions.create(**{**asked, "max_tokens": 1})
    assert whole.usage is not None
    assert plain.usage is not None
    used = chunks[-1].usage
    assert used is not None
    assert whole.usage.prompt_tokens == used.prompt_tokens > plain.usage.prompt_tokens + 50
    said, deltas = whole.choices[0].message, [each.choices[0].delta for each in chunks if each.choices]
    assert (said.content or "") == "".join(each.content or "" for each in deltas)
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert "".join(call.function.arguments or "" for call in calls if call.function) == "".join(
        each.function.arguments for each in said.tool_calls or () if each.type == "function"
    )
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == whole.usage.prompt_tokens
    assert len([each for each in message.content if each.type == "tool_use"]) == len(said.tool_calls or ())


@pytest.mark.slow
def test_smollm2_keeps_to_tools_that_are_strict() -> None:
    """The real vocabulary: whenever it calls of its own accord, its arguments are what the schema wants; and where it
    must, over Responses too.  Beside them an answer that need not be a call is whatever it likes."""
    needs_small_model()
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"city": {"enum": ["Bern", "Zürich"]}, "days": {"type": "integer", "minimum": 1, "maximum": 3}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    function = {"name": "forecast", "description": "Of a city, some days.", "parameters": schema, "strict": True}
    small = ("--set", "memory.pages=256", "--set", "memory.host_pages=0")
    tools: list[Any] = [{"type": "function", "function": function}]
    habit: list[Any] = []  # of calling, with arguments that the schema does not take: so small a model does as it did
    for city in ("Paris", "Rome", "Oslo"):
        call = f'<tool_call>[{{"name": "forecast", "arguments": {{"city": "{city}", "days": 30}}}}]</tool_call>'
        habit += [{"role": "user", "content": f"Forecast for {city}?"}, {"role": "assistant", "content": call}]
    habit.append({"role": "user", "content": "Forecast for Madrid?"})
    called = 0
    with (
        serving("--model", "smollm2", *small, cost=False) as server,
        OpenAI(base_url=server.url, api_key="none", timeout=4 * PATIENCE_S, max_retries=0) as client,
    ):
        for seed in range(3):
            answer = client.chat.completions.create(
                model="smollm2", messages=habit, tools=tools, max_tokens=60, temperature=0.7, seed=seed
            )
            (choice,) = answer.choices
            for made in choice.message.tool_calls or ():
                assert made.type == "function"
                called += 1
                if choice.finish_reason == "tool_calls":
                    jsonschema.validate(json.loads(made.function.arguments), schema)
        flat: list[Any] = [{"type": "function", **function}]
        told = client.responses.create(
            model="smollm2", input="Forecast?", tools=flat, tool_choice="required", max_output_tokens=120, temperature=0
        )
        for item in told.output:
            assert item.type == "function_call"
            if item.status == "completed":
                jsonschema.validate(json.loads(item.arguments), schema)
        assert told.output
        assert server.metric("stepwell:worker_restarts_total") == 0
        assert server.stop() == 0
    assert called, "it never called, so nothing was shown"
