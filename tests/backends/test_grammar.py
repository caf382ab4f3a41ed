"""Masks of grammars against a naive one, and answers that are drawn through them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.tests.helpers.vocabularies import END, FIRST, OTHER_END, TOOL, VOCABULARY, grammars, said, spell

from stepwell.backends.batch import Row  # isort: skip
from stepwell.backends.constraint import Constraint  # isort: skip
from stepwell.backends.masks import Masks, may_follow  # isort: skip
from stepwell.core.errors import UserError
from stepwell.core.grammar import ANY_OBJECT, Grammar, choice_of
from stepwell.core.sampling import SamplingParams

SIZE = len(VOCABULARY.pieces) + 9
"""A model's scores may be of more tokens than there are."""
READY = grammars()
ENDS = frozenset([END, OTHER_END])


def allowed(grammar: Grammar, answer: Sequence[int]) -> set[int]:
    """The tokens that may follow, as the backend finds out; the answer is told from the beginning."""
    masks = Masks(READY)
    try:
        row = Row(1, [7, 7, *answer], SamplingParams(grammar=grammar), 0, ENDS)
        row.prompt_tokens = 2
        row.constraint = masks.constraint(row.sampling)
        filled = masks.begin([row])
        assert filled is not None
        found = filled.result()
        assert not found.wrong
        mask = may_follow(row, SIZE, found)
        assert mask is not None
        return set(np.flatnonzero(mask).tolist())
    finally:
        masks.close()


def naive(language: Sequence[bytes], before: bytes) -> set[int]:
    """Every token tried: one may follow if some word of the language goes on so; an end, if this is one."""
    found = {
        token
        for token, piece in enumerate(VOCABULARY.pieces)
        if piece and any(word.startswith(before + piece) for word in language)
    }
    return found | ENDS if before in language else found


def expression(depth: int) -> st.SearchStrategy[str]:
    """Small regular expressions over two letters."""
    if depth == 0:
        return st.sampled_from(["a", "b", "ab", "[ab]", "."])
    inner = expression(depth - 1)
    return st.one_of(
        inner,
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]})({pair[1]})"),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["?", "{1,2}"])).map(lambda pair: f"({pair[0]}){pair[1]}"),
    )


@settings(max_examples=60, deadline=None)
@given(expression(2))
def test_a_regular_expression_allows_what_trying_every_token_allows(source: str) -> None:
    """A pattern without unbounded repetition, ``.`` narrowed to the letters that are tried."""
    source = source.replace(".", "[abc]")
    words = ["".join(letters) for size in range(17) for letters in _words(source, size)]
    language = [word.encode() for word in words]
    for before in {word[:cut] for word in words[:40] for cut in (0, 1, 2, len(word))}:
        assert allowed(Grammar("regex", source), spell(before.encode())) == naive(language, before.encode()), before


def _words(source: str, size: int) -> list[tuple[str, ...]]:
    """All words of a size, grown letter by letter where that can be; few patterns reach far."""
    if size > 8:
        return []
    return [word for word in itertools.product("abc", repeat=size) if re.fullmatch(source, "".join(word))]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=5, unique=True), st.data())
def test_a_choice_is_one_of_its_texts_and_nothing_else(texts: list[str], data: st.DataObject) -> None:
    grammar = choice_of(texts, "choice")
    words = [text.encode() for text in texts]
    answer: list[int] = []
    while True:
        may = allowed(grammar, answer)
        assert may == naive(words, said(answer))
        token = data.draw(st.sampled_from(sorted(may)))
        if token in ENDS:
            break
        answer.append(token)
    assert said(answer) in words


def test_an_end_is_allowed_where_the_answer_is_whole_and_only_there() -> None:
    grammar = Grammar("regex", "a+b?")
    assert not ENDS & allowed(grammar, [])
    assert allowed(grammar, spell(b"a")) >= ENDS
    assert allowed(grammar, spell(b"aab")) == ENDS
    assert TOOL not in allowed(Grammar("regex", "(?s:.*)"), [])


def test_a_special_token_may_be_asked_for_by_name_and_by_number() -> None:
    for source in ('start: <tool> "a"', f'start: <[{TOOL}]> "a"'):
        assert allowed(Grammar("lark", source), []) == {TOOL}
    with pytest.raises(UserError, match="unknown special token"):
        READY.compiled(Grammar("lark", 'start: <nothing> "a"'))


def test_everything_may_be_everything() -> None:
    grammar = Grammar("lark", "start: <[*]>*")
    assert allowed(grammar, spell(b"\xff{")) == set(range(len(VOCABULARY.pieces)))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30))
def test_where_an_answer_is_depends_on_its_tokens_alone(seed: int, steps: int) -> None:
    """Told at once, as after a restart, or token by token beside others: the same masks."""
    draws = np.random.default_rng(seed)
    compiled = READY.compiled(ANY_OBJECT)
    tokens: list[int] = []
    one = Constraint(compiled, READY.ends)
    for _ in range(steps):
        step, again = (np.zeros((1, READY.words), np.int32) for _ in range(2))
        assert not one.fill(tokens, 0, ENDS, step, 0)
        assert not Constraint(compiled, READY.ends).fill(tokens, 0, ENDS, again, 0)
        assert (step == again).all()
        may = np.flatnonzero(np.unpackbits(step[0].view(np.uint8), bitorder="little"))
        token = int(draws.choice(may))
        if token in ENDS:
            return
        tokens.append(token)


def test_white_space_has_an_end() -> None:
    blanks = spell(b" ")[0]
    assert blanks in allowed(ANY_OBJECT, spell(b"{" + b" " * 31))
    assert blanks not in allowed(ANY_OBJECT, spell(b"{" + b" " * 32))


def test_what_a_schema_says_of_itself_is_kept_but_not_of_white_space() -> None:
    loose = {"type": "object", "x-guidance": {"lenient": True, "whitespace_pattern": ".*"}, "not": {}}
    grammar = Grammar("json", json.dumps(loose))
    assert spell(b"x")[0] not in allowed(grammar, spell(b"{"))


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        (Grammar("regex", "(?=a)b"), "look-around"),
        (Grammar("regex", "(a"), "unclosed group"),
        (Grammar("json", "[1]"), "a schema must be an object"),
        (Grammar("json", "{"), "is no JSON"),
        (Grammar("json", '{"type":"foo"}'), "Invalid type: foo"),
        (Grammar("json", '{"not":{}}'), "Unimplemented keys"),
        (Grammar("json", '{"$ref":"http://example.org/x"}'), "example.org"),
        (Grammar("json", '{"properties":{"a":false},"required":["a"],"type":"object"}'), "unsatisfiable"),
        (Grammar("lark", "nothing"), "Expected token"),
    ],
)
def test_what_is_no_grammar_is_refused_with_a_reason(grammar: Grammar, why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        READY.compiled(grammar)
    assert len(str(caught.value)) < 400


def test_compiled_once_and_kept_within_bounds() -> None:
    some = grammars()
    some._kept = 2
    first, second, third = (Grammar("regex", text) for text in "abc")
    made = some.compiled(first)
    assert some.compiled(first) is made
    some.compiled(second)
    assert some.compiled(first) is made
    some.compiled(third)
    assert some.compiled(first) is made, "the latest used stay"
    assert list(some._compiled) == [third, first]


def test_more_than_the_parser_takes_is_a_reason_and_no_answer() -> None:
    """``spoiled`` in a step's result; the others of the step are not touched."""
    masks = Masks(READY)
    row = Row(5, [7, FIRST], SamplingParams(grammar=Grammar("regex", "ab")), 0, ENDS)
    row.prompt_tokens = 1  # the answer begins with a byte that the grammar does not have
    row.constraint = masks.constraint(row.sampling)
    other = Row(6, [7], SamplingParams(grammar=Grammar("regex", "ab")), 0, ENDS)
    other.constraint = masks.constraint(other.sampling)
    bad = Row(7, [7], SamplingParams(grammar=Grammar("regex", "(")), 0, ENDS)
    bad.constraint = masks.constraint(bad.sampling)
    filled = masks.begin([row, other, bad])
    assert filled is not None
    found = filled.result()
    masks.close()
    assert set(found.wrong) == {5, 7}
    assert "satisfy the grammar" in found.wrong[5]
    for spoiled in (row, bad):
        mask = may_follow(spoiled, SIZE, found)
        assert mask is not None
        assert set(np.flatnonzero(mask)) == ENDS
    assert masks.begin([Row(8, [7], SamplingParams(), 0, ENDS)]) is None
