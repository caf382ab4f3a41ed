"""Tokenizers from GGUF metadata and from a folder: reference encodings, naive references, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.backends.tokenizer import StepwellTokenizer, tokenizer_from_folder, tokenizer_from_gguf
from stepwell.backends.tokenizer_gguf import BYTE, CONTROL, LETTERS, NORMAL, PRETOKENIZERS, UNKNOWN, GgufVocabulary
from stepwell.core.errors import UserError
from stepwell.core.text import TextPipeline
from stepwell.tests.backends.speaking import KEY
from stepwell.tests.backends.speaking import vocabulary as tiny

BYTES = {byte: letter for letter, byte in LETTERS.items()}


def letters(text: str) -> str:
    return "".join(BYTES[byte] for byte in text.encode())


# ------------------------------------------------------------------------------------------------ a small GGUF


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": None}, "model"),
        ({"model": "bert"}, "model"),
        ({"pre": None}, "pre"),
        ({"pre": "nobody-knows"}, "pre"),
        ({"pre": 3}, "pre"),
        ({"tokens": None}, "tokens"),
        ({"tokens": []}, "tokens"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "tokens"),
        ({"tokens": ["a", 3]}, "tokens"),
        ({"tokens": "abc"}, "tokens"),
        ({"token_type": None}, "token_type"),
        ({"token_type": [1]}, "token_type"),
        ({"merges": None}, "merges"),
        ({"merges": ["ab"]}, "merges"),
        ({"merges": ["a "]}, "merges"),
        ({"merges": ["a zz"]}, "merges"),
        ({"add_bos_token": 1}, "add_bos_token"),
        ({"add_bos_token": True, "bos_token_id": None}, "bos_token_id"),
        ({"bos_token_id": 9999}, "bos_token_id"),
        ({"eos_token_id": [1, 2]}, "eos_token_id"),
        ({"eos_token_id": -1}, "eos_token_id"),
        ({"eos_token_ids": [1, 9999]}, "eos_token_ids"),
        ({"model": "llama"}, "scores"),
    ],
)
def test_ml_5_refused_with_the_key_named(change: dict[str, object], field: str) -> None:
    with pytest.raises(UserError) as caught:
        tokenizer_from_gguf(tiny(**change))
    assert caught.value.field == f"{KEY}{field}"


def test_ml_5_vocabulary_size_falls_back_to_the_token_list() -> None:
    size = len(tiny()[f"{KEY}tokens"])
    assert tokenizer_from_gguf(tiny(**{"llama.vocab_size": None})).vocab_size == size
    assert tokenizer_from_gguf(tiny(**{"llama.vocab_size": size + 61})).vocab_size == size
    with pytest.raises(UserError) as caught:
        tokenizer_from_gguf(tiny(**{"llama.vocab_size": size - 1}))
    assert caught.value.field == "llama.vocab_size"


def test_ml_5_a_forced_pre_tokenizer_is_a_warning() -> None:
    for pre in (None, "nobody-knows"):
        it = tokenizer_from_gguf(tiny(pre=pre), force_pre="gpt-2")
        assert it.encode("ab ab 123") == tokenizer_from_gguf(tiny()).encode("ab ab 123")
        assert ["forced to 'gpt-2'" in each for each in it.warnings] == [True]
    assert tokenizer_from_gguf(tiny(), force_pre="gpt-2").warnings == ()
    with pytest.raises(UserError):
        tokenizer_from_gguf(tiny(), force_pre="nobody-knows")


def test_ml_5_missing_template_and_flags_have_defaults() -> None:
    assert tokenizer_from_gguf(tiny(**{"tokenizer.chat_template": None})).chat_template == ""
    assert tokenizer_from_gguf(tiny(add_bos_token=None)).add_bos is False
    assert tokenizer_from_gguf(tiny(add_bos_token=None, pre="llama-bpe")).add_bos is True


def test_ml_5_a_vocabulary_that_lacks_bytes_is_a_warning() -> None:
    metadata = tiny()
    tokens = [f"unused {each}" if each in "xyz" else each for each in metadata[f"{KEY}tokens"]]
    (warning,) = tokenizer_from_gguf(tiny(tokens=tokens)).warnings
    assert "3 of the bytes" in warning


@pytest.mark.parametrize(
    ("pre", "cut"),
    [
        ("gpt-2", ["I", "'", "LL", " don", "'t", " 12345", " ", " apples", "\n\n", " x", "!?\u00a0"]),
        ("smollm", ["I", "'", "LL", " don", "'t", " ", *"12345", " ", " apples", "\n\n", " x", "!?\u00a0"]),
        ("llama-bpe", ["I", "'LL", " don", "'t", " ", "123", "45", " ", " apples", "\n\n", " x", "!?\u00a0"]),
        ("qwen2", ["I", "'LL", " don", "'t", " ", *"12345", " ", " apples", "\n\n", " x", "!?\u00a0"]),
    ],
)
def test_ml_5_each_pre_tokenizer_cuts_as_its_family_does(pre: str, cut: list[str]) -> None:
    cutter = GgufVocabulary(tiny()).byte_level(PRETOKENIZERS[pre]).pre_tokenizer
    expected = [part for each in cut for part in ([each[:2], each[2:]] if "\u00a0" in each else [each])]
    assert [piece for piece, _ in cutter.pre_tokenize_str("".join(cut))] == [letters(each) for each in expected]


def test_ml_5_a_word_in_the_vocabulary_is_taken_whole_where_the_family_does_it() -> None:
    tokens = [*tiny()[f"{KEY}tokens"], "whole"]
    changes = {"tokens": tokens, "token_type": [3] * 3 + [1] * (len(tokens) - 3), "llama.vocab_size": None}
    assert tokenizer_from_gguf(tiny(**changes, pre="llama-bpe")).encode("whole") == [len(tokens) - 1]
    assert len(tokenizer_from_gguf(tiny(**changes)).encode("whole")) == 5


def test_special_tokens_are_spelled_out_even_where_a_word_is_taken_whole() -> None:
    tokens = [*tiny()[f"{KEY}tokens"], "end"]
    changes = {"tokens": tokens, "token_type": [3] * 3 + [1] * (len(tokens) - 4) + [3], "llama.vocab_size": None}
    it = tokenizer_from_gguf(tiny(**changes, pre="llama-bpe"))
    assert it.decode(it.encode("the end")) == b"the end"
    assert it.decode(it.encode("end")) == b"end"
    assert it.encode("end", special=True) == [len(tokens) - 1]


# ------------------------------------------------------------------------------------------------ ends, BOS


def test_eo_1_end_tokens_are_the_union_of_all_sources() -> None:
    assert tokenizer_from_gguf(tiny()).end_tokens == {1, 2}
    assert tokenizer_from_gguf(tiny(eot_token_id=5, eom_token_id=6)).end_tokens == {1, 2, 5, 6}
    assert tokenizer_from_gguf(tiny(eos_token_ids=[7, 8])).end_tokens == {1, 2, 7, 8}
    no_eos = tokenizer_from_gguf(tiny(eos_token_id=None))
    assert no_eos.end_tokens == {1, 2}
    assert "eos_token_id" in no_eos.warnings[0]
    nothing = tiny(eos_token_id=None, token_type=[NORMAL] * len(tiny()[f"{KEY}tokens"]))
    with pytest.raises(UserError) as caught:
        tokenizer_from_gguf(nothing)
    assert caught.value.field == f"{KEY}eos_token_id"


@pytest.mark.parametrize("add", [True, False])
def test_tt_3_exactly_one_bos_when_either_side_asks_for_it(add: bool) -> None:
    it = tokenizer_from_gguf(tiny(add_bos_token=add))
    assert it.with_bos(it.encode("<s>ab", special=True)) == [0, 259]
    assert it.with_bos(it.encode("ab", special=True)) == ([0, 259] if add else [259])
    assert it.with_bos([]) == ([0] if add else [])
    assert it.prompt("ab") == ([0] if add else []) + [259]
    assert it.prompt("<s>ab") == ([0] if add else []) + it.encode("<s>ab")
    assert it.with_bos(it.encode("<s></s>ab", special=True)) == [0, 1, 259]
    assert it.with_bos([0, 0, 259]) == [0, 0, 259]


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(UserError):
        tokenizer_from_gguf(tiny()).encode("\ud83d")


# ------------------------------------------------------------------------------------------------ SentencePiece

WORDS = "▁ t h e c a s d o g ▁t he ▁the ▁c ▁ca ▁cat ▁s ▁sa ▁sat ▁d ▁do ▁dog at th".split()


def sentence_piece(**changes: object) -> dict[str, Any]:
    bytes_ = [f"<0x{each:02X}>" for each in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *WORDS]
    base = {
        "model": "llama",
        "pre": None,
        "merges": None,
        "tokens": tokens,
        "token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(WORDS)],
        "scores": [0.0] * 259 + [-float(each) for each in range(len(WORDS))],
        "llama.vocab_size": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": None,
    }
    return tiny(**(base | changes))


def best_pairs(text: str) -> list[str]:
    """What SentencePiece does: always join the neighbours whose result scores best; then bytes for what is left."""
    symbols = list("▁" + text.replace(" ", "▁"))
    while True:
        joined = [a + b for a, b in pairwise(symbols)]
        known = [each for each in joined if each in WORDS]
        if not known:
            break
        at = joined.index(min(known, key=WORDS.index))
        symbols[at : at + 2] = [joined[at]]
    return [
        part
        for each in symbols
        for part in ([each] if each in WORDS else [f"<0x{byte:02X}>" for byte in each.encode()])
    ]


@settings(deadline=None)
@given(st.text("thecasdog é😀", min_size=1, max_size=20))
def test_ml_5_sentence_piece_equals_a_naive_reference(text: str) -> None:
    it = spm()
    tokens = sentence_piece()[f"{KEY}tokens"]
    ids = it.encode(text)
    assert [tokens[each] for each in ids] == best_pairs(text)
    assert it.decode(ids).decode() == text
    assert it.decode(ids).decode() == it._honouring.decode(ids)


@cache
def spm() -> StepwellTokenizer:
    return tokenizer_from_gguf(sentence_piece())


@pytest.mark.parametrize("size", [1, 3, 8])
def test_dt_4_the_cats_sat(size: int) -> None:
    it = spm()
    ids = it.encode("the cats sat")
    assert [it.name(each) for each in ids] == [" the", " cat", "s", " sat"]
    for opening, text in (("answer", "the cats sat"), ("continuation", " the cats sat")):
        pipeline = TextPipeline(it, opening=opening)  # type: ignore[arg-type]
        deltas = [pipeline.feed(ids[at : at + size]) for at in range(0, len(ids), size)]
        assert "".join(deltas) + pipeline.finish() == text
    assert it.decode(ids) == b"the cats sat"


def test_dt_4_the_tokenizer_is_asked_about_one_token_at_a_time() -> None:
    """So the 8,000th costs what the 100th does: one look into a table.  Counted, not timed."""
    it, asked = spm(), []

    class Counting:
        vocab_size, end_tokens, encode = it.vocab_size, it.end_tokens, it.encode

        def token_bytes(self, token: int) -> bytes:
            asked.append(1)
            return it.token_bytes(token)

        def decode(self, tokens: Sequence[int]) -> bytes:
            asked.append(len(tokens))
            return it.decode(tokens)

    ids = it.encode("the cats sat") * 2000
    pipeline = TextPipeline(Counting())
    cost: list[int] = []
    text = ""
    for token in ids:
        asked.clear()
        text += pipeline.feed([token])
        cost.append(sum(asked))
    assert cost[100] == cost[7999] == max(cost[1:]) == 1
    assert text + pipeline.finish() == it.decode(ids).decode()


def test_sentence_piece_without_a_first_space() -> None:
    it = tokenizer_from_gguf(sentence_piece(add_space_prefix=False))
    assert [it.name(each) for each in it.encode("the cat")] == ["t", "he", " cat"]
    assert it.decode(it.encode(" cat")) == b" cat"


def test_sentence_piece_begins_with_bos_and_hides_its_specials() -> None:
    it = spm()
    assert it.add_bos
    assert it.with_bos(it.encode("the</s>", special=True)) == [1, *it.encode("the"), 2]
    assert it.decode(it.encode("<s></s>")) == b"<s></s>"
    assert it.decode([1, *it.encode("the"), 2, 0]) == b"the"


# ------------------------------------------------------------------------------------------------ folders


def folder(path: Path, it: StepwellTokenizer, **files: object) -> Path:
    (path / "tokenizer.json").write_text(it._honouring.to_str())
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


CONFIG = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": True, "chat_template": "T"}


@pytest.mark.parametrize("texts", [["ab ab 123", " x é😀", "</s>", ""]])
def test_a_folder_equals_the_gguf_it_was_made_from(tmp_path: Path, texts: Sequence[str]) -> None:
    for metadata in (tiny(), sentence_piece()):
        one = tokenizer_from_gguf(metadata)
        two = tokenizer_from_folder(folder(tmp_path, one, tokenizer_config=CONFIG))
        assert [two.token_bytes(each) for each in range(one.vocab_size)] == list(
            map(one.token_bytes, range(one.vocab_size))
        )
        for text in texts:
            assert two.encode(text) == one.encode(text)
            assert two.encode(text, special=True) == one.encode(text, special=True)
            assert two.decode(one.encode(text)) == one.decode(one.encode(text))
        assert (two.vocab_size, two.bos, two.eos, two.special_tokens) == (
            *(one.vocab_size, one.bos, one.eos),
            one.special_tokens,
        )
        assert (two.add_bos, two.chat_template, two.strips_space) == (True, "T", one.strips_space)


def test_eo_1_end_tokens_of_a_folder_are_the_union(tmp_path: Path) -> None:
    it = tokenizer_from_gguf(tiny())
    made = tokenizer_from_folder(
        folder(
            tmp_path,
            it,
            tokenizer_config=CONFIG,
            config={"eos_token_id": 4},
            generation_config={"eos_token_id": [7, 2]},
        )
    )
    assert made.end_tokens == {1, 2, 4, 7}


@pytest.mark.parametrize(
    ("files", "field"),
    [
        ({"tokenizer_config": {"bos_token": "<no such>"}}, "tokenizer_config.json: bos_token"),
        ({"config": {"eos_token_id": 9999}}, "config.json: eos_token_id"),
        ({"config": {"eos_token_id": "2"}}, "config.json: eos_token_id"),
        ({"config": []}, "config.json"),
        ({"tokenizer_config": CONFIG | {"chat_template": 3}}, "tokenizer_config.json: chat_template"),
        ({"tokenizer": {"model": 3}}, "tokenizer.json"),
    ],
)
def test_ml_5_what_a_folder_lacks_is_named(tmp_path: Path, files: dict[str, object], field: str) -> None:
    made = folder(tmp_path, tokenizer_from_gguf(tiny()), **files)
    with pytest.raises(UserError) as caught:
        tokenizer_from_folder(made)
    assert caught.value.field == field


def test_ml_5_a_folder_in_which_nothing_ends_an_answer_is_refused(tmp_path: Path) -> None:
    tokens = ["<a>", "<b>", "<c>", *tiny()[f"{KEY}tokens"][3:]]
    made = folder(tmp_path, tokenizer_from_gguf(tiny(tokens=tokens)), tokenizer_config={})
    with pytest.raises(UserError) as caught:
        tokenizer_from_folder(made)
    assert caught.value.field == "generation_config.json: eos_token_id"


def test_ml_5_no_tokenizer_or_a_broken_one(tmp_path: Path) -> None:
    for content in (None, "{", "\x00"):
        if content is not None:
            (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(UserError) as caught:
            tokenizer_from_folder(tmp_path)
        assert caught.value.field == "tokenizer.json"


def test_tt_1_a_template_out_of_a_models_files_runs_no_code(tmp_path: Path) -> None:
    """Of a GGUF file's metadata and of a tokenizer's configuration; it walks to builtins and would write a canary."""
    pytest.importorskip("jinja2", reason="needs the extra `serve`")
    from stepwell.transports.templates import ChatPrompt  # lazy: skips where the extra is missing

    canary = tmp_path / "canary"
    evil = f"{{{{ cycler.__init__.__globals__.__builtins__.open('{canary}', 'w') }}}}"
    one = tokenizer_from_gguf(tiny(**{"tokenizer.chat_template": evil}))
    two = tokenizer_from_folder(folder(tmp_path, one, tokenizer_config=CONFIG | {"chat_template": evil}))
    for tokenizer in (one, two):
        prompt = ChatPrompt(tokenizer)
        try:
            with pytest.raises(UserError) as caught:
                prompt([{"role": "user", "content": "hi"}], {})
        finally:
            prompt.close()
        assert caught.value.field == "chat_template"
    assert not canary.exists()


def test_templates_of_a_folder(tmp_path: Path) -> None:
    it = tokenizer_from_gguf(tiny())
    named = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    folder(tmp_path, it, tokenizer_config=CONFIG | {"chat_template": named})
    assert tokenizer_from_folder(tmp_path).chat_template == "D"
    (tmp_path / "chat_template.jinja").write_text("J")
    assert tokenizer_from_folder(tmp_path).chat_template == "J"
