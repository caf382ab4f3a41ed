"""What grammars have to know of a model: its tokens as bytes, which are not text, and which end an answer."""

from __future__ import annotations

from stepwell.backends.grammar import Vocabulary
from stepwell.backends.tokenizer import StepwellTokenizer, gguf_pieces, tokenizer_from_folder
from stepwell.backends.tokenizer_gguf import GgufVocabulary
from stepwell.backends.weights.source import ModelSource
from stepwell.core.errors import UserError


def vocabulary_of(tokenizer: StepwellTokenizer) -> Vocabulary:
    """Of a tokenizer."""
    pieces = [tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)]
    return Vocabulary(pieces, dict(tokenizer.special_tokens), sorted(tokenizer.end_tokens))


def read_vocabulary(source: ModelSource) -> Vocabulary:
    """Of an opened model's files, without a tokenizer if that can be.  Raises ``UserError`` if they hold none."""
    if source.kind != "gguf":
        return vocabulary_of(tokenizer_from_folder(source.path))
    it = GgufVocabulary(source.gguf_metadata)
    pieces, special = gguf_pieces(it)
    ends = sorted(it.ends())
    if not ends:
        raise UserError("no token is known to end an answer", field="model.path")
    return Vocabulary(pieces, special, ends)
