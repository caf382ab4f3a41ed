"""The tiny model with a small byte-level vocabulary, so that it can be served: it takes text and answers in text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from stepwell.backends.tokenizer import tokenizer_from_gguf
from stepwell.backends.tokenizer_gguf import CONTROL, LETTERS, NORMAL
from stepwell.tests.backends.tiny import SHAPE, write_folder, write_gguf

KEY = "tokenizer.ggml."


def vocabulary(**changes: object) -> dict[str, Any]:
    """Byte-level metadata: three controls, 256 letters, a few merges.  A change to None removes a key."""
    merges = ["a b", "Ġ ab", "1 2", "12 3"]
    tokens = ["<s>", "</s>", "<|im_end|>", *LETTERS, *(each.replace(" ", "") for each in merges)]
    metadata = {
        "general.architecture": "llama",
        "llama.vocab_size": len(tokens),
        f"{KEY}model": "gpt2",
        f"{KEY}pre": "gpt-2",
        f"{KEY}tokens": tokens,
        f"{KEY}token_type": [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3),
        f"{KEY}merges": merges,
        f"{KEY}bos_token_id": 0,
        f"{KEY}eos_token_id": 1,
        f"{KEY}add_bos_token": False,
        "tokenizer.chat_template": "{{ messages }}",
    }
    for name, value in changes.items():
        key = name if "." in name else f"{KEY}{name}"
        metadata[key] = value
        if value is None:
            del metadata[key]
    return metadata


SPEAKING = msgspec.structs.replace(SHAPE, vocab_size=len(vocabulary()[f"{KEY}tokens"]))


def write_speaking_gguf(path: Path, **changes: object) -> Path:
    """One file; ``changes`` to its vocabulary."""
    return write_gguf(path, SPEAKING, vocabulary=vocabulary(**changes))


def write_speaking_folder(
    path: Path, *, shards: int = 1, tokens: list[str] | None = None, files: dict[str, dict[str, Any]] | None = None
) -> Path:
    """A folder; ``tokens`` replaces those of the vocabulary, ``files`` what is in the small files, whole."""
    write_folder(path, SPEAKING, shards=shards)
    it = tokenizer_from_gguf(vocabulary(**({"tokens": tokens} if tokens else {})))
    (path / "tokenizer.json").write_text(it._honouring.to_str())
    settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False, "chat_template": "{{ messages }}"}
    config = json.loads((path / "config.json").read_text()) | {"eos_token_id": 1}
    for name, value in {"config": config, "tokenizer_config": settings, **(files or {})}.items():
        (path / f"{name}.json").write_text(json.dumps(config | value if name == "config" else value))
    return path
