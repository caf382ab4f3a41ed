"""Grammars made ready for one vocabulary by the library ``llguidance``: compiled once, kept, and copied per request.

What is compiled depends on the grammar and the vocabulary alone, and what a copy allows next on the tokens that it was
told: so after a preemption, a restart or in another process it is made again from the answer so far.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, regex_to_lark
from llguidance.numpy import fill_next_token_bitmask

from stepwell.core.errors import UserError
from stepwell.core.grammar import JSON_STYLE, Grammar

FIELD = "structured_outputs"
"""What errors name if nobody knows better."""
KEPT = 64
"""Compiled grammars that stay when no request has them, the latest used."""
MOST_TOLD = 300
"""Letters of llguidance's complaint that a client is told."""

LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,  # 20 ms by its authors' measure: what a large public schema (FHIR) takes twice over
    step_lexer_fuel=100_000,  # 7 ms
    step_max_items=50_000,  # 2.5 ms
    max_lexer_states=20_000,  # 1 to 2 kB each, of every request
    max_grammar_size=200_000,
    max_items_in_row=2_000,
    verbose_errors=False,  # what a grammar says is no business of logs
)

_FREELY = '\n%llguidance {"no_forcing": true}'
"""Text that can only go on in one way may be spelled by any tokens: the model knows best by which."""


class Vocabulary(msgspec.Struct, frozen=True, array_like=True):
    """What a grammar has to know of a tokenizer: the bytes of every token, and those that are not text by name."""

    pieces: list[bytes]
    special: dict[str, int]
    ends: list[int]


class _Tokens:
    """A vocabulary as llguidance asks for it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        names = {id: name.encode() for name, id in vocabulary.special.items()}
        self.tokens = [names.get(id, piece) for id, piece in enumerate(vocabulary.pieces)]
        self.special_token_ids = sorted(names)
        self.eos_token_id = vocabulary.ends[0]
        self.bos_token_id: int | None = None

    def __call__(self, text: str) -> list[int]:
        """Only asked of text that is forced, and none is."""
        raise NotImplementedError


class Grammars:
    """Of one vocabulary, which is read when the first grammar comes.  May be used from several threads."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], kept: int = KEPT) -> None:
        self._read = vocabulary
        self._kept = kept
        self._tokenizer: LLTokenizer | None = None
        self._reading = threading.Lock()
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self.ends: list[int] = []
        """Tokens that may come where an answer is whole, the library's own first; known once a grammar is."""

    @property
    def words(self) -> int:
        """Of 32 bits, for one of each token."""
        return -(-int(self._tree().vocab_size) // 32)

    def compiled(self, grammar: Grammar) -> LLMatcher:
        """A matcher that has been told nothing, to be copied.  Raises ``UserError`` for what is no grammar."""
        with self._lock:
            made = self._compiled.get(grammar)
            if made is not None:
                self._compiled.move_to_end(grammar)
                return made
        made = self._compile(grammar)
        with self._lock:
            self._compiled[grammar] = made
            while len(self._compiled) > self._kept:
                self._compiled.popitem(last=False)
        return made

    def _compile(self, grammar: Grammar) -> LLMatcher:
        text = LLMatcher.grammar_from_lark(written(grammar) + _FREELY)
        made = LLMatcher(self._tree(), text, log_level=0, limits=LIMITS)
        if not made.is_error():
            # The first mask builds most of the lexer; copies begin with that.
            fill_next_token_bitmask(made, np.zeros((1, self.words), np.int32))
        if made.is_error():
            raise UserError(_told(made.get_error(), grammar.kind == "lark"), field=FIELD)
        return made

    def _tree(self) -> LLTokenizer:
        """The vocabulary as a tree of bytes."""
        with self._reading:
            if self._tokenizer is None:
                found = self._read()
                self._tokenizer = LLTokenizer(TokenizerWrapper(_Tokens(found)), n_vocab=len(found.pieces))
                self.ends = found.ends
            return self._tokenizer


def written(grammar: Grammar) -> str:
    """In llguidance's variant of Lark.  Raises ``UserError`` for a schema that is no object."""
    if grammar.kind == "lark":
        return grammar.source
    if grammar.kind == "regex":
        return f"start: /{regex_to_lark(grammar.source, '')}/"
    try:
        value = json.loads(grammar.source)
    except (ValueError, RecursionError) as error:
        raise UserError(f"is no JSON: {error}", field=FIELD) from None
    if grammar.kind == "choice":
        texts: Sequence[str] = value
        return "start: " + " | ".join(map(json.dumps, texts))
    if not isinstance(value, dict):
        raise UserError("a schema must be an object", field=FIELD)
    asked = value.get("x-guidance")
    style = {**(asked if isinstance(asked, dict) else {}), **JSON_STYLE}
    return "start: %json " + json.dumps({**value, "x-guidance": style})


_SHOWN = re.compile(r"\n+\s*\d+ \| .*", re.DOTALL)
_PLACE = re.compile(r"^(?:at )?\d+\(\d+\): ")


def _told(message: str, with_place: bool) -> str:
    """A complaint in one line, without the grammar; its places mean something to those only who wrote Lark."""
    first = _SHOWN.sub("", message.partition("<non-verbose/>")[0])
    first = first if with_place else _PLACE.sub("", first)
    return " ".join(first.split())[:MOST_TOLD] or "cannot be understood"
