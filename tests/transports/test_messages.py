"""What messages must look like before a template sees them."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.core.errors import UserError
from stepwell.transports.templates import check_messages


def user(text: Any = "hi") -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ("hi", "messages"),
        (None, "messages"),
        ([3], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "king", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([*user(), {"role": "user"}], "messages[1].content"),
        (user(None), "messages[0].content"),
        (user(7), "messages[0].content"),
        (user(["x"]), "messages[0].content[0]"),
        (user([{"type": "text"}]), "messages[0].content[0]"),
        (user([{"type": "text", "text": "x"}, {"type": "image_url"}]), "messages[0].content[1]"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [1]}], "messages[0].tool_calls[0]"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_in_4_bad_messages_are_refused_with_the_place_named(messages: Any, field: str) -> None:
    with pytest.raises(UserError) as caught:
        check_messages(messages)
    assert caught.value.field == field


def test_messages_as_templates_expect_them() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    call = {"id": "1", "function": {"name": "f", "arguments": '{"x": 1}'}}
    assert check_messages(
        [
            {"role": "developer", "content": parts, "name": "n"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
    ) == [
        {"role": "system", "content": "ab", "name": "n"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"x": 1}}}],
        },
    ]
