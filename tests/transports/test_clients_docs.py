"""docs/clients.md says what each field means: of exactly the fields, and of the parsers, that there are."""

from __future__ import annotations

import re

import msgspec
import pytest

from stepwell.core.registry import names
from stepwell.tests.architecture_rules import ROOT
from stepwell.transports.http.anthropic_requests import MessagesRequest
from stepwell.transports.http.requests import ChatRequest, CompletionRequest
from stepwell.transports.http.tokenizing import DetokenizeRequest, TokenizeRequest

PAGE = (ROOT / "docs" / "clients.md").read_text()


def first_column(after: str) -> list[str]:
    """The names in code of the first column of the first table after a text."""
    rows = PAGE.split(after, 1)[1].split("\n\n| ", 1)[1].split("\n\n")[0].splitlines()[2:]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


@pytest.mark.parametrize(
    ("path", "struct"),
    [
        ("/v1/chat/completions", ChatRequest),
        ("/v1/completions", CompletionRequest),
        ("/v1/messages", MessagesRequest),
        ("/tokenize", TokenizeRequest),
        ("/detokenize", DetokenizeRequest),
    ],
)
def test_the_fields_are_those_that_there_are(path: str, struct: type[msgspec.Struct]) -> None:
    told = first_column(f"## Fields of `POST {path}`")
    assert sorted(told) == sorted(struct.__struct_fields__)


def test_the_parsers_are_those_that_there_are() -> None:
    told = first_column("`model.tool_parser` says who reads")
    assert sorted(told) == sorted([*names("tool_parsers"), "none"])
    told = first_column("`model.reasoning_parser` says who parts them")
    assert sorted(told) == sorted([*names("reasoning_parsers"), "none"])
