"""The tokenizer of rehearsals: what goes in comes out, and tokens are as long as a model's, nearly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.words import TEXT, WordTokenizer

IT = WordTokenizer()


@given(st.text(max_size=60))
def test_text_survives(text: str) -> None:
    ids = IT.encode(text)
    assert IT.decode(ids) == text.encode()
    assert all(0 <= id < IT.vocab_size for id in ids)
    assert b"".join(map(IT.token_bytes, ids)) == text.encode()


def test_half_a_surrogate_is_replaced() -> None:
    assert IT.decode(IT.encode("a\ud800b")) == b"a?b"


@given(st.integers(0, IT.vocab_size - 1))
def test_every_token_has_bytes(token: int) -> None:
    assert 1 <= len(IT.token_bytes(token)) <= 16


def test_there_is_nothing_outside_the_vocabulary() -> None:
    assert IT.token_bytes(-1) == IT.token_bytes(IT.vocab_size) == b""


def test_english_takes_about_three_bytes_a_token() -> None:
    assert 2.5 < len(TEXT) / len(IT.encode(TEXT)) < 4.5
