"""Grammars of strangers are read in a process that may die of them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from stepwell.tests.helpers.vocabularies import VOCABULARY, grammars

from stepwell.core.config_grammar import GrammarConfig  # isort: skip
from stepwell.core.errors import UserError  # isort: skip
from stepwell.core.grammar import ANY_OBJECT, Grammar, choice_of  # isort: skip
from stepwell.transports.grammar_process import GrammarProcess

CHECKER = "stepwell.backends.grammar_check:checker"
GBNF = 'root ::= "SELECT " col\ncol ::= "a" | "b"\n'
DEEP = "start: a0\n" + "".join(f"a{index}: a{index + 1}\n" for index in range(4000)) + 'a4000: "x"'
"""Rules within rules: read without a process around it, it ends whoever reads it."""
PATTERN = "|".join(f"(a|b){{1,{most}}}c" for most in range(1, 60))
MANY = {f"p{index}": {"type": "string", "pattern": f"^({PATTERN})$"} for index in range(90)}


@pytest.fixture(scope="module")
def process() -> Iterator[GrammarProcess]:
    made = GrammarProcess(CHECKER, VOCABULARY, GrammarConfig())
    yield made
    made.close()


@pytest.mark.parametrize(
    "grammar",
    [ANY_OBJECT, choice_of(["é", "b"], ""), Grammar("regex", "a/b"), Grammar("lark", 'start: <tool> "x"')],
    ids=lambda grammar: grammar.kind,
)
def test_a_good_one_is_told_to_the_backend_as_it_is(process: GrammarProcess, grammar: Grammar) -> None:
    assert process(grammar) == grammar


def test_gbnf_is_rewritten_so_that_the_backend_understands_it(process: GrammarProcess) -> None:
    made = process(Grammar("lark", GBNF))
    assert made.source != GBNF
    assert grammars().compiled(made) is not None


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        (Grammar("regex", "(a"), "unclosed group"),
        (Grammar("json", '{"not":{}}'), "Unimplemented"),
        (Grammar("lark", "root ::= x"), r"(Lark|GBNF|x)"),
        (Grammar("lark", 'start: <other> "x"'), "unknown special token"),
    ],
)
def test_a_bad_one_is_refused_with_the_reason(process: GrammarProcess, grammar: Grammar, why: str) -> None:
    with pytest.raises(UserError, match=why):
        process(grammar)


def test_one_that_ends_its_reader_is_refused_and_the_next_one_is_read(process: GrammarProcess) -> None:
    process(ANY_OBJECT)
    (before,) = process._running
    with pytest.raises(UserError, match="too deep"):
        process(Grammar("lark", DEEP))
    assert before not in process._running
    assert process(ANY_OBJECT) == ANY_OBJECT


def test_one_that_takes_too_long_is_refused() -> None:
    process = GrammarProcess(CHECKER, VOCABULARY, GrammarConfig(seconds=0.05))
    try:
        assert process(ANY_OBJECT) == ANY_OBJECT
        with pytest.raises(UserError, match=r"more than 0\.05 s of processor time"):
            process(Grammar("json", json.dumps({"type": "object", "properties": MANY, "required": list(MANY)})))
        assert process(ANY_OBJECT) == ANY_OBJECT
    finally:
        process.close()


def test_killed_while_nobody_asks_it_is_started_again(process: GrammarProcess) -> None:
    process(ANY_OBJECT)
    child = process._running[0]._child
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process(ANY_OBJECT) == ANY_OBJECT
