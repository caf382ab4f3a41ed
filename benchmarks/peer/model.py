"""A model's folder for a server that loads one: a configuration without weights, and a tokenizer of numbered tokens.

Token ``FIRST + n`` is the two letters of number ``n`` (``sim.numbered``), so that the load generator knows every letter
before it comes; other text becomes bytes and pairs.  Byte-level BPE, as Llama 3 and Qwen have.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stepwell.sim.numbered import LETTERS, NUMBERED

BYTES = 256
FIRST = BYTES
"""The token of number 0."""
NUMBERS = len(NUMBERED) // 2
END = FIRST + NUMBERS
"""The end token; no answer has it."""
_END_TEXT = "<|end|>"
_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant: "


def byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary: itself where it can be seen, others from 256 on
    (GPT-2's table)."""
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in seen else chr(next(others)) for byte in range(BYTES)]


def tokenizer() -> dict[str, Any]:
    """As ``tokenizer.json`` has it."""
    pairs = [NUMBERED[at : at + 2] for at in range(0, len(NUMBERED), 2)]
    vocabulary = {text: token for token, text in enumerate([*byte_letters(), *pairs, _END_TEXT])}
    end = {"id": END, "content": _END_TEXT, "special": True}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": [[high, low] for high in LETTERS for low in LETTERS],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**end, **plain}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }


def config(context: int) -> dict[str, Any]:
    """As ``config.json`` has it: the smallest Llama that a server takes for one."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": END + 1,
        "eos_token_id": END,
        "max_position_embeddings": context,
        "torch_dtype": "float32",
    }


def write(folder: Path, context: int) -> None:
    """Everything that such a server reads."""
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _END_TEXT, "chat_template": _TEMPLATE}
    files = {"config.json": config(context), "tokenizer.json": tokenizer(), "tokenizer_config.json": settings}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
