"""Reads grammars that strangers wrote, in a process that may die of them (``transports.sandbox``).

The library can be made to overflow its stack, which ends a process at once; and nobody can stop a thread that computes.
So each grammar is read here first, with less stack than whoever follows it later will have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
from llguidance.gbnf_to_lark import any_to_lark

from stepwell.backends.grammar import FIELD, Grammars, Vocabulary
from stepwell.core.errors import UserError
from stepwell.core.grammar import Grammar

STACK_BYTES = 1 << 20
"""Threads that follow grammars have eight times that, on a common system."""


def checker(about: object) -> Callable[[Grammar], Grammar]:
    """Compiles a grammar of the ``Vocabulary`` that it is told of, and says how it is to be written.

    Raises ``UserError`` for what is none.
    """
    vocabulary = msgspec.convert(about, Vocabulary)
    grammars = Grammars(lambda: vocabulary, kept=1)
    threading.stack_size(STACK_BYTES)

    def check(grammar: Grammar) -> Grammar:
        made = Grammar(grammar.kind, _as_lark(grammar.source)) if grammar.kind == "lark" else grammar
        grammars.compiled(made)
        return made

    def inside(grammar: Grammar) -> Grammar:
        outcome: list[Grammar | BaseException] = []

        def run() -> None:
            try:
                outcome.append(check(grammar))
            except (UserError, MemoryError, RecursionError) as error:
                outcome.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if not outcome:
            raise UserError("cannot be understood", field=FIELD)
        (came,) = outcome
        if isinstance(came, Grammar):
            return came
        raise came if isinstance(came, UserError) else UserError("takes too much to be understood", field=FIELD)

    return inside


def _as_lark(source: str) -> str:
    """GBNF, which others take, is rewritten."""
    try:
        return str(any_to_lark(source))
    except Exception as error:
        # Its own error class says where; all else is a mistake in the grammar that it did not think of.
        raise UserError(f"is neither Lark nor GBNF: {error}"[:300], field=FIELD) from None
