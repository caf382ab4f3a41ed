"""The requests that engines are compared by: lengths from a fixed draw, prompts cut from a text that everybody has.

Lengths are those of the common engine workload: 64 requests, prompts of 32 to 512 tokens and answers of 16 to 256.
What the text says matters to no engine without a prefix cache; for one that has it, every prompt begins elsewhere.
"""

from __future__ import annotations

import importlib.metadata
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from stepwell.cli.load_client import Ask
from stepwell.core.build import COSTMODEL, ECHO
from stepwell.core.errors import UserError
from stepwell.core.words import WordTokenizer

SEED = 1234
REQUESTS = 64
LONGEST = 512
"""Tokens of a prompt, at most."""


def lengths(count: int = REQUESTS) -> list[tuple[int, int]]:
    """Prompt and output tokens of each request."""
    draw = random.Random(SEED)
    return [(draw.randint(32, LONGEST), draw.randint(16, 256)) for _ in range(count)]


class Prompts:
    """Cuts prompts out of ``ids``, from places in an order that ``run`` decides; no place twice until all were."""

    def __init__(self, ids: list[int], run: int = 0) -> None:
        if len(ids) < LONGEST:
            raise UserError(f"must hold at least {LONGEST} token ids, got {len(ids)}", field="corpus")
        self._ids = ids + ids[:LONGEST]
        self._starts = _places(len(ids), run)

    def ask(self, prompt: int, tokens: int) -> Ask:
        """A request with a prompt of ``prompt`` tokens for an answer of ``tokens``."""
        start = next(self._starts)
        return Ask(self._ids[start : start + prompt], tokens)


def _places(count: int, run: int) -> Iterator[int]:
    draw = random.Random(f"places-{run}")
    while True:
        yield from draw.sample(range(count), count)


def read_corpus(path: Path) -> list[int]:
    """Token ids from a JSON file, a list of numbers."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[int])
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}", field="corpus") from None
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is not a list of token ids in JSON ({error})", field="corpus") from None


def own_corpus(encode: Callable[[str], list[int]]) -> list[int]:
    """The license that comes with this package, in the model's tokens."""
    # A checkout's metadata may come before the installed package's, and has no license in it.
    found = importlib.metadata.distributions(name="stepwell")
    text = next(filter(None, (each.read_text("licenses/LICENSE") for each in found)), None)
    if text is None:
        raise UserError("the installed package has no license text; give token ids by --corpus", field="corpus")
    return encode(text)


def encoder_of(model: str) -> Callable[[str], list[int]]:
    """The tokenizer of a model that ``stepwell serve --model`` takes.  Raises ``UserError`` if there is none."""
    if model == ECHO:
        return lambda text: list(text.encode())
    if model == COSTMODEL:
        return WordTokenizer().encode
    try:
        from stepwell.backends.tokenizer import tokenizer_of  # lazy: extras
        from stepwell.backends.weights.opening import open_model  # lazy: torch takes seconds
    except ModuleNotFoundError as error:
        raise UserError(
            f"a real model needs the extra `serve`: pip install 'stepwell[serve]' (no {error.name})", field="model"
        ) from None
    return tokenizer_of(open_model(model)).encode
