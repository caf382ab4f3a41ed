"""HC-3: a text that takes long to encode holds no other thread up, as the event loop is one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("tokenizers", reason="needs the extra `model`")

from stepwell.backends.tokenizer import tokenizer_from_gguf
from stepwell.tests.backends.speaking import vocabulary as tiny


@pytest.fixture
def nobody_is_interrupted() -> Iterator[None]:
    """A thread goes on only when another gives the interpreter's lock up by itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.mark.usefixtures("nobody_is_interrupted")
@pytest.mark.parametrize("special", [True, False])
def test_hc_3_others_have_a_turn_while_a_long_text_is_encoded(special: bool) -> None:
    it = tokenizer_from_gguf(tiny())
    text = "the end of a sentence " * 10_000
    begins, ended = threading.Event(), False
    turns: list[bool] = []

    def other() -> None:
        begins.wait()
        turns.append(ended)

    thread = threading.Thread(target=other)
    thread.start()
    begins.set()
    ids = it.encode(text, special=special)
    ended = True
    thread.join()
    assert turns == [False]
    assert it.decode(ids) == text.encode()
