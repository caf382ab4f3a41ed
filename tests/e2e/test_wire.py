"""With the OpenAI SDK against a real server: what a request says of itself is in the journal, as the table has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepwell.core.events import Submitted
from stepwell.core.journal import Turn
from stepwell.tests.core.journals import records
from stepwell.tests.e2e.serving import PATIENCE_S, serving

import openai  # isort: skip
from openai import OpenAI  # isort: skip


def test_the_sdk_s_tier_priority_and_headers_reach_the_scheduler(tmp_path: Path) -> None:
    rules = ("--set", "wire.tenant_header=X-Stepwell-Tenant", "--set", 'wire.tiers={flex="batch",priority="chat"}')
    with (
        serving(*rules, "--journal", str(tmp_path)) as server,
        OpenAI(base_url=server.url, api_key="none", timeout=PATIENCE_S, max_retries=0) as client,
    ):

        def ask(tier: Any = "auto", headers: dict[str, str] | None = None, **fields: object) -> str | None:
            answer = client.chat.completions.create(
                model="echo",
                messages=[{"role": "user", "content": "hi"}],
                service_tier=tier,
                prompt_cache_key="talk",
                extra_body=fields,
                extra_headers=headers,
            )
            return answer.service_tier

        assert ask() == "default"
        assert ask("flex", {"X-Stepwell-Tenant": "gold"}) == "flex"
        assert ask("priority", priority=2) == "default"
        assert ask("priority", priority=-2) == "priority"
        assert ask("flex", {"X-Stepwell-Class": "chat"}) == "default"
        for tier, headers, param in (
            ("golden", None, "service_tier"),
            ("auto", {"X-Stepwell-Class": "x"}, "X-Stepwell-Class"),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                ask(tier, headers)
            assert refused.value.param == param
        assert server.stop() == 0
    (file,) = tmp_path.iterdir()
    turns = [each for each in records(file) if isinstance(each, Turn)]
    told = [event for turn in turns for event in turn.events if isinstance(event, Submitted)]
    assert [(each.klass, each.tenant, each.priority) for each in told] == [
        ("chat", "default", 0),
        ("batch", "gold", 0),
        ("batch", "default", 2),
        ("chat", "default", -2),
        ("chat", "default", 0),
    ]
    programs = [each.program for each in told]
    assert len({*programs}) == 2
    assert programs[1] != programs[0] == programs[2]
    assert b"talk" not in file.read_bytes()
