"""docs/write_a_parser.md: its parser is lawful, is served by path, and reads what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stepwell.core.registry import load
from stepwell.core.testing import check_tool_parser
from stepwell.tests.architecture_rules import ROOT
from stepwell.tests.transports.house import chat, client, make_service

PAGE = (ROOT / "docs" / "write_a_parser.md").read_text()
FILES = dict(re.findall(r"<!-- file: (.+?) -->\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
CALL = '<fn=weather>{"city": "Rome"}</fn>'
TOOL = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture
def parser(tmp_path: Path) -> str:
    """Its name, by path."""
    (tmp_path / "fn.py").write_text(FILES["fn.py"])
    return f"{tmp_path / 'fn.py'}:Fn"


def test_it_is_lawful(parser: str) -> None:
    kind: Any = load("tool_parsers", parser)
    check_tool_parser(lambda: kind(kind.Options()), examples=8)
    assert "check_tool_parser(lambda: Fn(Fn.Options()))" in FILES["check.py"]


def test_it_reads_what_the_page_says(parser: str) -> None:
    assert f"`{CALL}`" in PAGE
    with client(make_service(parsers={"tool_parser": parser})) as http:
        for said, content, calls in (
            (f"Well. {CALL}", "Well.", [("weather", '{"city": "Rome"}')]),
            ("<fn=weather>no", "<fn=weather>no", []),
        ):
            answer = http.post("/v1/chat/completions", json=chat(said, tools=[TOOL])).json()
            message = answer["choices"][0]["message"]
            assert message["content"] == content
            called = [each["function"] for each in message.get("tool_calls") or ()]
            assert [(each["name"], each["arguments"]) for each in called] == calls
