"""Grammars as data: their bounds, and that they travel."""

from __future__ import annotations

import re
import tomllib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.core.config_grammar import GrammarConfig
from stepwell.core.errors import UserError
from stepwell.core.grammar import MAX_CHOICES, MAX_DEPTH, Grammar, check_bounds, choice_of
from stepwell.core.sampling import SamplingParams
from stepwell.tests.architecture_rules import ROOT

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


def depth(value: object) -> int:
    """Counted on the value itself."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth, inner), default=0) if isinstance(value, dict | list) else 0


@settings(max_examples=50, deadline=None)
@given(JSON)
def test_the_depth_of_a_schema_is_counted_without_making_it(value: object) -> None:
    assert Grammar("json", msgspec.json.encode(value).decode()).depth == depth(value)


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        (Grammar("regex", r"(a|(b\())"), 2),
        (Grammar("regex", r"[0-9]{3}"), 1),
        (Grammar("regex", ")(" * 9), 1),
        (Grammar("lark", 'start: ("a" ("b"))'), 2),
    ],
)
def test_the_depth_of_a_text(grammar: Grammar, expected: int) -> None:
    assert grammar.depth == expected


def test_quotes_without_an_end_are_read_once() -> None:
    """A look for the end of each of them would take a minute, on the loop that everybody waits for."""
    assert Grammar("json", '{"a' + '\\"' * 32_000).depth == 1
    assert Grammar("json", '["' + "\\" * 32_001).depth == 1


@pytest.mark.parametrize(
    ("source", "why"),
    [("", "empty"), ("x" * 101, "101 bytes, and 100"), ("é" * 51, "102 bytes"), ("(" * (MAX_DEPTH + 1), "nested")],
)
def test_what_is_out_of_bounds_is_refused_with_its_field(source: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        check_bounds(Grammar("regex", source), 100, "some.field")
    assert caught.value.field == "some.field"


def test_half_a_character_is_refused() -> None:
    with pytest.raises(UserError, match="surrogate"):
        check_bounds(Grammar("regex", "\ud83d"), 100, "some.field")


@pytest.mark.parametrize("texts", [[], [""], ["a", ""], ["a"] * (MAX_CHOICES + 1)])
def test_a_choice_has_something_to_choose(texts: list[str]) -> None:
    with pytest.raises(UserError):
        choice_of(texts, "choice")


@given(st.sampled_from(["json", "regex", "choice", "lark"]), st.text())
def test_it_travels_to_another_process(kind: str, source: str) -> None:
    sampling = SamplingParams(grammar=Grammar(kind, source), allowed_token_ids=(1,), bad_words=((1, 2),))  # type: ignore[arg-type]
    try:
        data = msgspec.msgpack.encode(sampling)
    except UnicodeEncodeError:
        return  # refused at the door
    assert msgspec.msgpack.decode(data, type=SamplingParams) == sampling


def test_the_settings_in_the_docs_are_those_that_there_are() -> None:
    page = (ROOT / "docs" / "structured_output.md").read_text()
    (settings,) = re.findall(r"^```toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    told = tomllib.loads(settings)["grammar"]
    assert list(told) == list(GrammarConfig.__struct_fields__)
    assert msgspec.convert(told, GrammarConfig) == GrammarConfig()
