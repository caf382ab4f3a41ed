"""A GGUF file's vocabulary, checked, and the ``tokenizers.Tokenizer`` that cuts and merges as its model was trained.

``tokenizer.py`` says what is refused and what has a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from stepwell.backends.weights.end_tokens import gguf_end_tokens
from stepwell.core.errors import UserError

# --------------------------------------------------------------------------------------------------- pieces


def _letters() -> dict[str, int]:
    """The printable letters that byte-level BPE writes for the 256 bytes."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + at): byte for at, byte in enumerate(hidden)}


LETTERS = _letters()


def spell_bytes(piece: str) -> bytes:
    codes = [LETTERS.get(char) for char in piece]
    known = bytes(code for code in codes if code is not None)
    return known if len(known) == len(codes) else piece.encode()


def spell_words(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes.fromhex(piece[3:5])
    return piece.replace("▁", " ").encode()


# --------------------------------------------------------------------------------------------------- GGUF


class PreTokenizer(NamedTuple):
    """How a model family cuts a text before merging; ``pattern`` empty is GPT-2's."""

    pattern: str = ""
    digits: bool = False
    """Every digit is cut off first."""
    add_bos: bool = False
    ignore_merges: bool = False
    """A word that is in the vocabulary is taken whole."""
    nfc: bool = False


_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = PreTokenizer(_WORDS + r"\p{N}{1,3}" + _REST, add_bos=True, ignore_merges=True)
_QWEN2 = PreTokenizer(_WORDS + r"\p{N}" + _REST, nfc=True)
PRETOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": PreTokenizer(),
    "gpt2": PreTokenizer(),
    "phi-2": PreTokenizer(),
    "smollm": PreTokenizer(digits=True),
    "starcoder": PreTokenizer(digits=True),
    "refact": PreTokenizer(digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""GGUF's token types."""

KEY = "tokenizer.ggml."


TEXT_BYTES = frozenset([0x09, 0x0A, 0x0D, *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF1), 0xF3])
"""Bytes of any text in use: no other control characters, no planes without characters."""


def pre_tokenizer(metadata: Mapping[str, object], force: str) -> tuple[PreTokenizer, list[str]]:
    key = f"{KEY}pre"
    name = metadata.get(key)
    known = ", ".join(PRETOKENIZERS)
    if force and force not in PRETOKENIZERS:
        raise UserError(f"no pre-tokenizer {force!r} to force; known are {known}", field=key)
    if isinstance(name, str) and name in PRETOKENIZERS and force in ("", name):
        return PRETOKENIZERS[name], []
    said = "is missing" if name is None else f"{name!r} is not known"
    if not force:
        ways = f"model.pre_tokenizer forces one of {known}"
        raise UserError(f"{said}; a text would be cut differently than in training; {ways}", field=key)
    return PRETOKENIZERS[force], [f"{key} {said if name not in PRETOKENIZERS else repr(name)}; forced to {force!r}"]


class GgufVocabulary:
    """The metadata, checked."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self.metadata = metadata
        model = metadata.get(f"{KEY}model")
        if model not in ("gpt2", "llama"):
            raise UserError(f"must be 'gpt2' or 'llama', not {model!r}", field=f"{KEY}model")
        self.model = str(model)
        self.tokens = self.array("tokens", str)
        self.types = self.array("token_type", int)
        self.ids = {text: id for id, text in enumerate(self.tokens)}
        if not self.tokens or len(self.ids) < len(self.tokens):
            twice = next((text for id, text in enumerate(self.tokens) if self.ids[text] != id), None)
            raise UserError("is empty" if twice is None else f"lists {twice!r} twice", field=f"{KEY}tokens")
        if len(self.types) != len(self.tokens):
            raise UserError(f"{len(self.types)} types of {len(self.tokens)} tokens", field=f"{KEY}token_type")
        size_key = f"{metadata.get('general.architecture', 'llama')}.vocab_size"
        size = metadata.get(size_key, len(self.tokens))
        if not isinstance(size, int) or size < len(self.tokens):
            raise UserError(f"is {size!r}, with {len(self.tokens)} tokens listed", field=size_key)

    def array(self, name: str, kind: type) -> list[Any]:
        value = self.metadata.get(f"{KEY}{name}")
        if value is None:
            raise UserError("is missing", field=f"{KEY}{name}")
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise UserError(f"must be an array, not {value!r}", field=f"{KEY}{name}")
        items = list(value)
        for index, each in enumerate(items):
            if not isinstance(each, kind):
                raise UserError(f"item {index} must be {kind.__name__}, not {each!r}", field=f"{KEY}{name}")
        return items

    def flag(self, name: str, default: bool) -> bool:
        value = self.metadata.get(f"{KEY}{name}", default)
        if not isinstance(value, bool):
            raise UserError(f"must be true or false, not {value!r}", field=f"{KEY}{name}")
        return value

    def id(self, name: str) -> int | None:
        value = self.metadata.get(f"{KEY}{name}")
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < len(self.tokens):
            raise UserError(f"must be one of {len(self.tokens)} token ids, not {value!r}", field=f"{KEY}{name}")
        return value

    def ends(self) -> list[int]:
        """The tokens that end an answer."""
        found = gguf_end_tokens(self.metadata)
        for token, key in found.items():
            if token >= len(self.tokens):
                raise UserError(f"must be one of {len(self.tokens)} token ids, not {token}", field=key)
        return list(found)

    def of(self, kind: int) -> list[str]:
        return [text for text, each in zip(self.tokens, self.types, strict=True) if each == kind and text]

    def byte_level(self, pre: PreTokenizer) -> Tokenizer:
        merges = []
        for index, each in enumerate(self.array("merges", str)):
            cut = each.find(" ", 1)
            if cut < 0 or cut + 1 == len(each):
                raise UserError(f"item {index} is {each!r}, not two pieces", field=f"{KEY}merges")
            merges.append((each[:cut], each[cut + 1 :]))
        try:
            tokenizer = Tokenizer(models.BPE(vocab=self.ids, merges=merges, ignore_merges=pre.ignore_merges))
        except Exception as error:
            # The library raises nothing more special.
            raise UserError(f"does not go with the tokens: {error}", field=f"{KEY}merges") from None
        cuts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre.digits else []
        if pre.pattern:
            cuts.append(pre_tokenizers.Split(Regex(pre.pattern), "isolated"))
        cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pre.pattern))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
        if pre.nfc:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def sentence_piece(self) -> Tokenizer:
        """SentencePiece joins the pair whose result scores best; the library wants that as a list of merges."""
        scores = self.array("scores", float)
        if len(scores) != len(self.tokens):
            raise UserError(f"{len(scores)} scores of {len(self.tokens)} tokens", field=f"{KEY}scores")
        words = dict.fromkeys(self.of(NORMAL), True)
        merges: list[tuple[float, str, str]] = []
        for word in words:
            halves = [(word[:at], word[at:]) for at in range(1, len(word))]
            known = [each for each in halves if each[0] in words and each[1] in words]
            known.sort(key=lambda each: (self.ids[each[0]], self.ids[each[1]]))
            merges += [(scores[self.ids[word]], left, right) for left, right in known]
        merges.sort(key=lambda each: (each[0], len(each[1]), len(each[2])), reverse=True)
        unknown = self.of(UNKNOWN)
        tokenizer = Tokenizer(
            models.BPE(
                vocab=self.ids,
                merges=[(left, right) for _, left, right in merges],
                unk_token=unknown[0] if unknown else None,
                fuse_unk=True,
                byte_fallback=bool(self.of(BYTE)),
            )
        )
        spaces: list[Any] = [normalizers.Prepend("▁")] if self.flag("add_space_prefix", True) else []
        tokenizer.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", "▁")])
        strip = [decoders.Strip(" ", 1, 0)] if spaces else []
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
        return tokenizer
