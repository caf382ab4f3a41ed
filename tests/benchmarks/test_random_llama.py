"""The random Llama that speaks takes any text, and what it says is text."""

from __future__ import annotations

import argparse
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stepwell.backends.tokenizer import tokenizer_from_folder
from stepwell.backends.weights.opening import open_model
from stepwell.benchmarks.random_llama import shape_of, write, write_tokenizer
from stepwell.transports.templates import ChatPrompt

VOCABULARY = 300


def test_it_takes_text_and_says_text(tmp_path: Path) -> None:
    shape = shape_of(argparse.Namespace(hidden=64, layers=1, vocabulary=VOCABULARY))
    write(tmp_path, shape, seed=0)
    write_tokenizer(tmp_path, VOCABULARY)
    assert open_model(str(tmp_path)).config.vocab_size == VOCABULARY
    tokenizer = tokenizer_from_folder(tmp_path)

    @given(st.text())
    def text_comes_back(text: str) -> None:
        tokens = tokenizer.encode(text)
        assert len(tokens) == len(text.encode())
        assert tokenizer.decode(tokens).decode() == text

    text_comes_back()
    assert tokenizer.decode([VOCABULARY - 1]).decode() == f"<{VOCABULARY - 1}>"
    chat = ChatPrompt(tokenizer)
    try:
        assert chat([{"role": "user", "content": "hello"}], {}) == tokenizer.encode("hello")
    finally:
        chat.close()
