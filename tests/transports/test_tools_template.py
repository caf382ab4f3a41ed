"""Tools and reasoning through real templates and a real tokenizer: what the model is shown, and how it is found out."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="needs the extra `model`")

from stepwell.backends.tokenizer import StepwellTokenizer, tokenizer_from_gguf
from stepwell.backends.weights.gguf_file import read_gguf
from stepwell.core.registry import load
from stepwell.tests.helpers.small_model import small_model_path
from stepwell.tests.transports.house import chat, client, make_service
from stepwell.transports.service import Service
from stepwell.transports.templates import ChatPrompt

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
QWEN = (
    "{%- if tools %}<|im_start|>system\n<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>"
    "<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls %}<tool_call>{{ call.function.name }} {{ call.function.arguments.city }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
)
"""The skeleton of how Qwen's templates do it."""


@pytest.fixture(scope="module")
def tokenizer() -> StepwellTokenizer:
    path = small_model_path()
    return tokenizer_from_gguf(read_gguf(path).metadata)


def served(tokenizer: StepwellTokenizer, template: str = "") -> Service:
    prompt = ChatPrompt(tokenizer, template)
    return make_service(
        tokenizer=tokenizer,
        encode=tokenizer.prompt,
        template=prompt,
        chat_template=prompt.template,
        close=prompt.close,
        memory={"pages": 4000},
    )


def shown(http: Any, **fields: Any) -> str:
    answer = http.post("/tokenize", json={"return_token_strs": True, **fields}).json()
    return "".join(answer["token_strs"])


def test_smollm2_is_known_by_its_template_and_told_of_tools(tokenizer: StepwellTokenizer) -> None:
    service = served(tokenizer)
    assert type(service.parsers.tools) is load("tool_parsers", "smollm2")
    assert service.parsers.reasoning is None
    with client(service) as http:
        text = shown(http, messages=chat("Weather in Bern?")["messages"], tools=[WEATHER])
        assert '"name": "weather"' in text
        assert "<tool_call>[" in text
        assert text.endswith("Weather in Bern?<|im_end|>\n<|im_start|>assistant\n")
        asked = chat("Weather in Bern?", tools=[WEATHER], max_tokens=1)
        usage = http.post("/v1/chat/completions", json=asked).json()["usage"]
        count = http.post("/tokenize", json={key: asked[key] for key in ("messages", "tools")}).json()["count"]
        assert usage["prompt_tokens"] == count
        assert "<tools>" not in shown(http, messages=asked["messages"])


def test_a_template_that_knows_tools_and_thinking(tokenizer: StepwellTokenizer) -> None:
    service = served(tokenizer, QWEN)
    assert type(service.parsers.tools) is load("tool_parsers", "hermes")
    assert type(service.parsers.reasoning) is load("reasoning_parsers", "think")
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "rain <|im_end|>"},
    ]
    with client(service) as http:
        text = shown(http, messages=messages, tools=[WEATHER])
        assert '<tools>{"type": "function", "function": {"name": "weather"' in text
        assert "<tool_call>weather Bern</tool_call>" in text
        assert "<|im_start|>tool\nrain <|im_end|><|im_end|>" in text
        for fields, reasoning in (({}, True), ({"reasoning_effort": "none"}, False)):
            body = chat("ok", max_tokens=3, **fields)
            message = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
            assert ("reasoning_content" in message) == reasoning
        body = {"model": "echo", "max_tokens": 3, "messages": chat("ok")["messages"], "thinking": {"type": "disabled"}}
        blocks = http.post("/v1/messages", json=body).json()["content"]
        assert [each["type"] for each in blocks] == ["text"]
