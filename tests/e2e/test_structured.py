"""Structured output of a real model, asked for by OpenAI's own client, with everything in between."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest

from stepwell.tests.e2e.serving import PATIENCE_S, serving
from stepwell.tests.e2e.test_worker import worker_of
from stepwell.tests.helpers.small_model import needs_small_model

from openai import BadRequestError, OpenAI  # isort: skip

pydantic = pytest.importorskip("pydantic", reason="comes with the openai SDK")

SMALL = ("--set", "memory.pages=128", "--set", "memory.host_pages=0", "--set", "scheduler.token_budget=256")
HOSTILE = "start: a0\n" + "".join(f"a{index}: a{index + 1}\n" for index in range(4000)) + 'a4000: "x"'


class Person(pydantic.BaseModel):  # type: ignore[name-defined, misc]
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=120)


@pytest.mark.slow
def test_the_sdk_parses_what_was_asked_for_and_a_hostile_grammar_harms_nobody() -> None:

    needs_small_model()
    messages: Any = [{"role": "user", "content": "Tell me of Jane, who is 54."}]
    asked: Any = {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 150}
    with (
        serving("--model", "smollm2", *SMALL) as server,
        OpenAI(base_url=server.url, api_key="none", timeout=4 * PATIENCE_S, max_retries=0) as client,
    ):
        (choice,) = client.chat.completions.parse(**asked, response_format=Person).choices
        assert isinstance(choice.message.parsed, Person)
        with pytest.raises(BadRequestError, match=r"structured_outputs\.grammar"):
            client.chat.completions.create(**asked, extra_body={"structured_outputs": {"grammar": HOSTILE}})
        asked["extra_body"] = {"structured_outputs": {"choice": ["yes", "no"]}}
        assert client.chat.completions.create(**asked).choices[0].message.content in ("yes", "no")
        assert server.metric("stepwell:worker_restarts_total") == 0
        assert server.stop() == 0


@pytest.mark.slow
def test_ro_3_a_worker_that_is_killed_loses_no_grammar() -> None:
    """In the middle of answers that are held to one, and of one that is not: all end as on an undisturbed server, and
    those that are held are whole."""
    needs_small_model()
    exact = ("--set", "model.deterministic=true", "--set", "model.threads=1")
    messages: Any = [{"role": "user", "content": "Tell me of Jane, who is 54."}]
    schema = {**Person.model_json_schema(), "additionalProperties": False}
    form: Any = {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}
    ways: list[dict[str, Any]] = [
        {"response_format": form, "temperature": 0},
        {"response_format": form, "temperature": 1.0, "seed": 3},
        {"extra_body": {"structured_outputs": {"regex": "[a-z]{12,20}(x|yz)"}}, "temperature": 1.0, "seed": 4},
        {"temperature": 0, "max_tokens": 24},
    ]
    asked: Any = {"model": "smollm2", "messages": messages, "max_tokens": 100, "stream": True}

    def said(chunk: Any) -> str:
        return chunk.choices[0].delta.content or "" if chunk.choices else ""

    with (
        serving("--model", "smollm2", *SMALL, *exact) as server,
        OpenAI(base_url=server.url, api_key="none", timeout=4 * PATIENCE_S, max_retries=0) as client,
    ):
        whole = ["".join(map(said, client.chat.completions.create(**{**asked, **way}))) for way in ways]
        streams = [iter(client.chat.completions.create(**{**asked, **way})) for way in ways]
        texts = ["".join(said(next(stream)) for _ in range(4)) for stream in streams]
        os.kill(worker_of(server), signal.SIGKILL)
        texts = [text + "".join(map(said, stream)) for text, stream in zip(texts, streams, strict=True)]
        assert texts == whole
        for text in texts[:2]:
            Person.model_validate_json(text)
        assert re.fullmatch("[a-z]{12,20}(x|yz)", texts[2])
        assert server.metric("stepwell:worker_restarts_total") == 1
        after = client.chat.completions.create(**{**asked, "stream": False}, **ways[0])
        assert after.choices[0].message.content == whole[0]
        assert server.stop() == 0
