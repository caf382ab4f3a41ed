"""Which tokens end an answer: the union of all that a model's files say, and of a few names.  Computed here alone.

The weights ask for it and so does the tokenizer, so that the backend ends an answer at exactly the tokens that are not
shown to a client.  A result maps each token to the place that says so, in the order of the places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from stepwell.core.errors import UserError

NAMES = frozenset(
    """<|im_end|> <|eot_id|> <|eom_id|> <|eot|> <|end|> <|return|> <end_of_turn> <|end_of_turn|> <|endofturn|>
    <|endoftext|> <|end_of_text|> <end_of_utterance> </s> <eos> <EOT>""".split()
)
"""Control tokens that end an answer whatever else is said: models are often published with only one of theirs."""

FOLDER_FILES = ("tokenizer_config.json", "config.json", "generation_config.json", "tokenizer.json")
"""The files of a folder that say something about it."""

_KEY = "tokenizer.ggml."
_UNKNOWN, _CONTROL = 2, 3

Ends = dict[int, str]
"""End token → which key says so; a key as errors name it."""


def gguf_end_tokens(metadata: Mapping[str, object]) -> Ends:
    """From a GGUF file's metadata.  Raises ``UserError`` with the key as its field."""
    ends: Ends = {}
    for name in ("eos_token_id", "eot_token_id", "eom_token_id", "eos_token_ids"):
        value = metadata.get(key := _KEY + name)
        if value is not None:
            _add(ends, key, value if name.endswith("s") and isinstance(value, list) else [value])
    tokens, types = metadata.get(f"{_KEY}tokens"), metadata.get(f"{_KEY}token_type")
    named = [token for token, text in enumerate(tokens) if text in NAMES] if isinstance(tokens, list) else []
    for token in named:
        if not isinstance(types, list) or (token < len(types) and types[token] in (_CONTROL, _UNKNOWN)):
            ends.setdefault(token, f"{_KEY}tokens")
    return ends


def folder_end_tokens(files: Mapping[str, Mapping[str, object]]) -> Ends:
    """From what ``FOLDER_FILES`` hold, each of which may be missing.  Raises ``UserError`` with file and key."""
    ends: Ends = {}
    said = files.get("tokenizer_config.json", {}).get("eos_token")
    text = said.get("content") if isinstance(said, dict) else said
    token = _id_of(text, files) if isinstance(text, str) else None
    if token is not None:
        ends[token] = "tokenizer_config.json: eos_token"
    for name in ("config.json", "generation_config.json"):
        value = files.get(name, {}).get("eos_token_id")
        if value is not None:
            _add(ends, f"{name}: eos_token_id", value if isinstance(value, list) else [value])
    for added, name, special in _added(files):
        if special and name in NAMES:
            ends.setdefault(added, "tokenizer.json: added_tokens")
    return ends


def _add(ends: Ends, key: str, values: Iterable[object]) -> None:
    for each in values:
        if not isinstance(each, int) or isinstance(each, bool) or each < 0:
            raise UserError(f"must be a token id, not {str(each)[:60]!r}", field=key)
        ends.setdefault(each, key)


def _id_of(text: str, files: Mapping[str, Mapping[str, object]]) -> int | None:
    """The id of a token by its text, where it is found first."""
    decoder = files.get("tokenizer_config.json", {}).get("added_tokens_decoder")
    for key, value in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(value, dict) and value.get("content") == text and str(key).isdigit():
            return int(key)
    for token, added, _ in _added(files):
        if added == text:
            return token
    model = files.get("tokenizer.json", {}).get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    found = vocabulary.get(text) if isinstance(vocabulary, dict) else None
    return found if isinstance(found, int) else None


def _added(files: Mapping[str, Mapping[str, object]]) -> Iterator[tuple[int, str, bool]]:
    """Id, text and whether it is special, of the tokens that ``tokenizer.json`` adds to its vocabulary."""
    added = files.get("tokenizer.json", {}).get("added_tokens")
    for each in added if isinstance(added, list) else []:
        if isinstance(each, dict) and isinstance(each.get("id"), int):
            yield each["id"], str(each.get("content")), bool(each.get("special"))
