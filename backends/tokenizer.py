"""A model's tokenizer, from a GGUF file's metadata or from a Hugging Face folder, through the library ``tokenizers``.

What is missing or unknown is either refused with the key named, or has a default written down here:

- ``tokenizer.ggml.model``: ``gpt2`` (byte-level BPE) and ``llama`` (SentencePiece's BPE); anything else is refused.
- ``tokenizer.ggml.pre``: one of ``PRETOKENIZERS``.  Missing or unknown is refused unless a name is forced, which is
  then a warning that ``/v1/models`` shows.  SentencePiece has none.
- ``tokenizer.ggml.tokens``, ``token_type``, ``merges`` (``gpt2``), ``scores`` (``llama``): required.
- ``tokenizer.ggml.add_bos_token``: as the pre-tokenizer's model family does (``llama-bpe``: yes, other ``gpt2``: no);
  yes for ``llama``.  If it is wanted, ``bos_token_id`` is required.
- ``*.vocab_size``: the length of the token list.  A larger number (padded embeddings) is fine, a smaller one refused.
- End tokens are the union of every source (``weights/end_tokens.py``): ``eos_token_id``, ``eos_token_ids``,
  ``eot_token_id``, ``eom_token_id`` and control tokens known by name; in a folder ``tokenizer_config.json``,
  ``config.json``, ``generation_config.json`` and special tokens known by name.  None at all is refused.
- A folder begins with BOS if ``add_bos_token`` says so, and where that is missing, if ``tokenizer.json`` does it.

Names of special tokens inside a text are honoured only with ``special=True``.  ``encode`` adds nothing; ``with_bos``
puts BOS in front where the tokenizer asks for one and the text did not already begin with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer

from stepwell.backends.tokenizer_gguf import (
    CONTROL,
    KEY,
    LETTERS,
    TEXT_BYTES,
    UNKNOWN,
    USER_DEFINED,
    GgufVocabulary,
    pre_tokenizer,
    spell_bytes,
    spell_words,
)
from stepwell.backends.weights.end_tokens import FOLDER_FILES, folder_end_tokens
from stepwell.core.errors import UserError

if TYPE_CHECKING:
    from stepwell.backends.weights.source import ModelSource


class StepwellTokenizer:
    """Implements ``protocols.Tokenizer``; may be used from several threads at once."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        pieces: Sequence[bytes],
        *,
        special: Mapping[str, int],
        unknown: int | None = None,
        end_tokens: Iterable[int],
        bos: int | None = None,
        eos: int | None = None,
        add_bos: bool = False,
        strips_space: bool = False,
        chat_template: str = "",
        warnings: Sequence[str] = (),
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._honouring = tokenizer
        self._plain = Tokenizer.from_str(tokenizer.to_str())
        self._plain.encode_special_tokens = True
        self._pieces = list(pieces)
        self._names = {id: name for name, id in special.items()}
        self._forbidden = frozenset(id for id in special.values() if id != unknown)
        self._end_tokens = frozenset(end_tokens)
        self.special_tokens: dict[str, int] = dict(special)
        """Names and ids of all tokens that are not text."""
        self.bos, self.eos, self.add_bos = bos, eos, add_bos
        self.strips_space = strips_space
        """An answer's first space is not shown (SentencePiece); see ``core.text``."""
        self.chat_template = chat_template
        """The model's own, or empty."""
        self.warnings = tuple(warnings)
        """Where the model's data left room for doubt."""

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    @property
    def end_tokens(self) -> frozenset[int]:
        return self._end_tokens

    @property
    def bos_token(self) -> str:
        """As chat templates write it; empty if there is none."""
        return "" if self.bos is None else self.name(self.bos)

    @property
    def eos_token(self) -> str:
        return "" if self.eos is None else self.name(self.eos)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        try:
            # ``encode`` would keep the interpreter's lock for as long as a text takes; this one gives it up.
            by = self._honouring if special else self._plain
            ids = by.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError:
            raise UserError("holds half of a surrogate pair, which is no character", field="text") from None
        if special or self._forbidden.isdisjoint(ids):
            return ids
        # A vocabulary may reach a special token from plain text; then it is spelled out.
        spelled: list[int] = []
        for id in ids:
            parts = self._names[id] if id in self._forbidden else ()
            spelled += [each for char in parts for each in self._plain.encode(char, add_special_tokens=False).ids]
            spelled += [] if parts else [id]
        return [id for id in spelled if id not in self._forbidden]

    def prompt(self, text: str) -> list[int]:
        """A text to complete: names of special tokens in it are text, and BOS is in front where it is asked for."""
        return self.with_bos(self.encode(text))

    def with_bos(self, tokens: Sequence[int]) -> list[int]:
        """A whole prompt: begins with exactly one BOS if the tokenizer asks for it, and is left alone otherwise."""
        if self.bos is None or not self.add_bos or (tokens and tokens[0] == self.bos):
            return list(tokens)
        return [self.bos, *tokens]

    def token_bytes(self, token: int) -> bytes:
        """Empty too for ids beyond the vocabulary, which padded embeddings have."""
        return self._pieces[token] if 0 <= token < len(self._pieces) else b""

    def decode(self, tokens: Sequence[int]) -> bytes:
        whole = b"".join(map(self.token_bytes, tokens))
        return whole[1:] if self.strips_space and whole.startswith(b" ") else whole

    def name(self, token: int) -> str:
        """For reading: the name of a special token, the text of any other."""
        return self._names.get(token) or self.token_bytes(token).decode(errors="replace")


def tokenizer_of(source: ModelSource, *, force_pre: str = "") -> StepwellTokenizer:
    """The tokenizer of an opened model, whatever its files are.  ``force_pre`` as in ``tokenizer_from_gguf``.

    Raises ``UserError`` with the file named.
    """
    try:
        if source.kind == "gguf":
            return tokenizer_from_gguf(source.gguf_metadata, force_pre=force_pre)
        return tokenizer_from_folder(source.path)
    except UserError as error:
        # It knows which key is wrong, and not in which file.
        raise UserError(f"{source.path}: {error}", field="model.path") from None


def gguf_pieces(it: GgufVocabulary) -> tuple[list[bytes], dict[str, int]]:
    """The bytes of every token, none for those that are not text, which are named beside."""
    spell = spell_bytes if it.model == "gpt2" else spell_words
    raw = dict.fromkeys(it.of(USER_DEFINED), True)
    hidden = {text: it.ids[text] for text in (*it.of(CONTROL), *it.of(UNKNOWN))}
    return [b"" if text in hidden else text.encode() if text in raw else spell(text) for text in it.tokens], hidden


def tokenizer_from_gguf(metadata: Mapping[str, object], *, force_pre: str = "") -> StepwellTokenizer:
    """Build it from plain values by key.  ``force_pre`` names a pre-tokenizer where the file's is missing or unknown.

    Raises ``UserError`` with the key as its field.
    """
    it = GgufVocabulary(metadata)
    if it.model == "gpt2":
        pre, warnings = pre_tokenizer(metadata, force_pre)
        tokenizer, add_bos = it.byte_level(pre), pre.add_bos
        missing = [letter for letter in LETTERS if letter not in it.ids and LETTERS[letter] in TEXT_BYTES]
        if missing:
            warnings.append(
                f"{KEY}tokens has none for {len(missing)} of the bytes that text can hold; they are left out"
            )
    else:
        tokenizer, add_bos, warnings = it.sentence_piece(), True, []
    added = [AddedToken(text, special=False, normalized=False) for text in it.of(USER_DEFINED)]
    controls = [*it.of(CONTROL), *it.of(UNKNOWN)]
    tokenizer.add_tokens(added)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in controls])
    pieces, hidden = gguf_pieces(it)
    add_bos = it.flag("add_bos_token", add_bos)
    bos, eos = it.id("bos_token_id"), it.id("eos_token_id")
    if add_bos and bos is None:
        raise UserError("is missing, and add_bos_token asks for it", field=f"{KEY}bos_token_id")
    ends = it.ends()
    if not ends:
        raise UserError("is missing, and no token is known to end an answer", field=f"{KEY}eos_token_id")
    if eos is None:
        warnings.append(f"{KEY}eos_token_id is missing; answers end with {', '.join(it.tokens[each] for each in ends)}")
    template = metadata.get("tokenizer.chat_template", "")
    if not isinstance(template, str):
        raise UserError("must be text", field="tokenizer.chat_template")
    return StepwellTokenizer(
        tokenizer,
        pieces,
        special=hidden,
        unknown=next((it.ids[text] for text in it.of(UNKNOWN)), None),
        end_tokens=ends,
        bos=bos,
        eos=eos,
        add_bos=add_bos,
        strips_space=it.model == "llama" and it.flag("add_space_prefix", True),
        chat_template=template,
        warnings=warnings,
    )


# --------------------------------------------------------------------------------------------------- folder


def tokenizer_from_folder(path: str | Path) -> StepwellTokenizer:
    """Build it from ``tokenizer.json`` and the files beside it.

    Raises ``UserError`` with file and key as its field.
    """
    folder = Path(path)
    whole = _json(folder / "tokenizer.json", required=True)
    settings = _json(folder / "tokenizer_config.json")
    try:
        tokenizer = Tokenizer.from_str(json.dumps(whole))
    except Exception as error:
        # The library raises nothing more special.
        raise UserError(f"is no tokenizer: {error}", field="tokenizer.json") from None
    named: dict[str, int] = {}
    for role in ("bos_token", "eos_token"):
        value = settings.get(role)
        text = value.get("content") if isinstance(value, dict) else value
        if text:
            id = tokenizer.token_to_id(text)
            if id is None:
                raise UserError(f"{text!r} is not in tokenizer.json", field=f"tokenizer_config.json: {role}")
            named[role] = id
            tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False)])
    added = tokenizer.get_added_tokens_decoder()
    special = {each.content: id for id, each in added.items() if each.special}
    spell, strips = _decoder(whole.get("decoder"))
    vocabulary = tokenizer.get_vocab()
    pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for text, id in vocabulary.items():
        pieces[id] = b"" if text in special else text.encode() if id in added else spell(text)
    ends = folder_end_tokens({name: _json(folder / name) for name in FOLDER_FILES})
    for token, key in ends.items():
        if token >= len(pieces):
            raise UserError(f"must be one of {len(pieces)} token ids, not {token}", field=key)
    if not ends:
        raise UserError("no file says which token ends an answer", field="generation_config.json: eos_token_id")
    bos = named.get("bos_token")
    begins = tokenizer.encode("a").ids[:1] == [bos]
    return StepwellTokenizer(
        tokenizer,
        pieces,
        special=special,
        unknown=_unknown(whole.get("model"), vocabulary),
        end_tokens=ends,
        bos=bos,
        eos=named.get("eos_token", next(iter(ends))),
        add_bos=bos is not None and bool(settings.get("add_bos_token", begins)),
        strips_space=strips,
        chat_template=_template(folder, settings),
    )


def _json(path: Path, *, required: bool = False) -> dict[str, Any]:
    """The object in a file; empty if the file is absent and may be."""
    if not path.exists():
        if required:
            raise UserError(f"is missing in {path.parent}", field=path.name)
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"is no JSON: {error}", field=path.name) from None
    if not isinstance(value, dict):
        raise UserError("must hold a JSON object", field=path.name)
    return value


def _decoder(value: object) -> tuple[Callable[[str], bytes], bool]:
    """How pieces are spelled, and whether an answer's first space goes."""
    steps = value.get("decoders", [value]) if isinstance(value, dict) else []
    by_type = {each.get("type"): each for each in steps if isinstance(each, dict)}
    if "ByteLevel" in by_type:
        return spell_bytes, False
    if "Metaspace" in by_type:
        return spell_words, by_type["Metaspace"].get("prepend_scheme", "always") != "never"
    replace = by_type.get("Replace", {})
    if replace.get("pattern") == {"String": "▁"} and replace.get("content") == " ":
        return spell_words, by_type.get("Strip", {}).get("start", 0) > 0
    raise UserError(
        f"none of ByteLevel, Metaspace, Replace ▁: {sorted(map(str, by_type))}", field="tokenizer.json: decoder"
    )


def _unknown(model: object, vocabulary: Mapping[str, int]) -> int | None:
    """The token that stands for what the vocabulary cannot spell."""
    if not isinstance(model, dict):
        return None
    at = model.get("unk_id")
    return at if isinstance(at, int) else vocabulary.get(model.get("unk_token") or "")


def _template(folder: Path, settings: dict[str, Any]) -> str:
    """``chat_template.jinja`` goes before ``tokenizer_config.json``; of several the one named ``default``."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    value = settings.get("chat_template") or _json(folder / "chat_template.json").get("chat_template") or ""
    if isinstance(value, list):
        named = {each.get("name"): each.get("template") for each in value if isinstance(each, dict)}
        value = named.get("default", "")
    if not isinstance(value, str):
        raise UserError("must be text", field="tokenizer_config.json: chat_template")
    return value
