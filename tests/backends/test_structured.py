"""Answers held to grammars through the real backend and scheduler: whatever happens on the way, the same tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs the extra `model`")

from stepwell.backends.batch import Row
from stepwell.backends.grammar import Grammars, Vocabulary
from stepwell.backends.masks import Masks, may_follow
from stepwell.backends.sampler import choose
from stepwell.core.execution import StepResult
from stepwell.core.grammar import Grammar
from stepwell.core.placement import StepBatch
from stepwell.core.sampling import SamplingParams
from stepwell.tests.backends.driving import Hand, Served, make, serve
from stepwell.tests.backends.tiny import END, SHAPE, write_folder
from stepwell.tests.helpers.small_model import needs_small_model

LETTERS = {4 + index: bytes([32 + index]) for index in range(95)}
VOCABULARY = Vocabulary(
    [LETTERS.get(id, b'": ' if id == 120 else b"") for id in range(SHAPE.vocab_size)],
    {"<0>": 0, "<1>": 1, "<2>": 2, "</s>": END},
    [END],
)
WITH_ACCENTS = msgspec.structs.replace(
    VOCABULARY, pieces=[*VOCABULARY.pieces[:-2], *(bytes([each]) for each in "é".encode())]
)
"""It spells what the schemas below may ask for."""
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMS = [Grammar("json", json.dumps(PERSON)), Grammar("regex", "[ab]{3,20}(x|yz)"), Grammar("choice", '["one","two"]')]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model") / "tiny")


def backend(path: Path, **sizes: Any) -> Any:
    return make(path, grammars=Grammars(lambda: VOCABULARY), **sizes)


def requests(count: int = 9) -> list[tuple[list[int], int, SamplingParams]]:
    """Of every form, greedy and drawn, and one in three free."""
    made = []
    for index in range(count):
        grammar = None if index % 3 == 2 else FORMS[index % len(FORMS) if index % 2 else 0]
        sampling = SamplingParams(temperature=index % 2 * 1.0, seed=index, grammar=grammar)
        made.append(([5 + (index * 7 + place) % 90 for place in range(3 + index)], 48, sampling))
    return made


def text(tokens: list[int]) -> str:
    return b"".join(VOCABULARY.pieces[token] for token in tokens).decode()


@pytest.fixture(scope="module")
def alone(model: Path) -> Served:
    return serve(backend(model), requests(), at_once=False)


def test_finished_answers_are_what_was_asked_for(alone: Served) -> None:
    ended = 0
    for answer, reason, (_, most, sampling) in zip(alone.answers, alone.reasons, requests(), strict=True):
        if sampling.grammar is None:
            continue
        assert reason == ("stop" if answer[-1] == END else "length")
        assert reason == "stop" or len(answer) == most, "cut in the middle"
        if reason == "stop" and sampling.grammar.kind == "json":
            jsonschema.validate(json.loads(text(answer)), PERSON)
            ended += 1
    assert ended


@pytest.mark.parametrize("policy", ["swap", "fcfs"])
@pytest.mark.parametrize("depth", [1, 2])
def test_preempted_and_beside_others_the_same_tokens(model: Path, alone: Served, policy: str, depth: int) -> None:
    """By swap and by recompute: where an answer is in its grammar follows from its tokens."""
    host = 40 if policy == "swap" else 0
    served = serve(backend(model, pages=14, host_pages=host), requests(), policy=policy, depth=depth)
    assert served.answers == alone.answers
    assert served.reasons == alone.reasons
    assert served.preemptions["swap" if policy == "swap" else "recompute"]


def test_told_of_in_the_middle_as_after_a_restart_it_goes_on_the_same(model: Path, alone: Served) -> None:
    prompt, most, sampling = requests()[0]
    whole = alone.answers[0]
    for cut in (1, 4, len(whole) - 1):
        other = backend(model)
        hand = Hand(other)
        other.admit(1, prompt, most, sampling, whole[:cut])
        hand.prefill(1, len(prompt) + cut, 64)
        assert hand.answers[1] == [whole[cut]]
        other.close()


def test_a_grammar_that_nobody_can_read_spoils_its_own_answer_only(model: Path) -> None:
    """One that came without having been prepared."""
    other = backend(model)
    results: list[StepResult] = []
    execute = other.execute

    def noting(batch: StepBatch) -> StepResult:
        results.append(execute(batch))
        return results[-1]

    other.execute = noting
    hand = Hand(other)
    hand.begin(1, [5, 6, 7], 8, SamplingParams(temperature=0.0, grammar=Grammar("choice", '["q"]')))
    hand.begin(2, [5, 6, 7], 8, SamplingParams(temperature=0.0, grammar=Grammar("regex", "(")))
    assert text(hand.answers[1]) == "q"
    assert [[request for request, _ in result.spoiled] for result in results] == [[], [2]]
    assert "unclosed group" in results[1].spoiled[0][1]


def test_a_grammar_that_allows_everything_changes_no_token(model: Path) -> None:
    free = [(prompt, most, SamplingParams(temperature=1.0, seed=9)) for prompt, most, _ in requests(4)]
    held = [
        (prompt, most, SamplingParams(temperature=1.0, seed=9, grammar=Grammar("lark", "start: <[*]>*")))
        for prompt, most, _ in free
    ]
    assert serve(backend(model), held).answers == serve(backend(model), free).answers


def test_log_probabilities_are_the_models_own(model: Path) -> None:
    """Before any mask: the chosen token need not be among the best."""
    prompt = [5, 6, 7]
    free = serve(backend(model), [(prompt, 1, SamplingParams(temperature=0.0, logprobs=3))])
    found = []
    for sampling in (
        SamplingParams(temperature=0.0, logprobs=3, grammar=Grammar("choice", '["q"]')),
        SamplingParams(temperature=0.0, logprobs=3, allowed_token_ids=(4 + ord("q") - 32,)),
    ):
        hand = Hand(backend(model))
        hand.begin(1, prompt, 8, sampling)
        assert text(hand.answers[1]) == "q"
        found.append(hand)
    assert free.answers[0] != found[0].answers[1]


# ------------------------------------------------------------------------------------------------ many schemas

VALUES = st.integers(0, 9) | st.text('abé"', max_size=3)
LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": "string", "pattern": "^[a-c]{1,3}$"}),
    st.tuples(st.integers(-50, 50), st.integers(0, 99)).map(
        lambda pair: {"type": "integer", "minimum": pair[0], "maximum": sum(pair)}
    ),
    st.integers(0, 5).map(lambda most: {"type": "string", "maxLength": most}),
    st.lists(VALUES, min_size=1, max_size=3, unique_by=str).map(lambda some: {"enum": some}),
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def build(properties: dict[str, Any], cut: int) -> dict[str, Any]:
        required = list(properties)[: cut % (len(properties) + 1)]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    return st.builds(
        build, st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3), st.integers(0, 3)
    )


def arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda item, low, more: {"type": "array", "items": item, "minItems": low, "maxItems": low + more},
        inner,
        st.integers(0, 2),
        st.integers(0, 2),
    )


def either(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, min_size=1, max_size=2).map(lambda some: {"anyOf": some})


SCHEMAS = st.recursive(LEAVES, lambda inner: st.one_of(objects(inner), arrays(inner), either(inner)), max_leaves=6)


def drawn(masks: Masks, vocabulary: Vocabulary, schema: Any, seed: int, temperature: float, most: int) -> str | None:
    """An answer of random scores; None if it did not end."""
    size = len(vocabulary.pieces)
    ends = frozenset(vocabulary.ends)
    draws = np.random.default_rng(seed)
    row = Row(
        1,
        [9],
        SamplingParams(temperature=temperature, seed=seed, grammar=Grammar("json", json.dumps(schema))),
        seed,
        ends,
    )
    row.constraint = masks.constraint(row.sampling)
    closing = np.array([any(letter in piece for letter in b'"}]') for piece in vocabulary.pieces])
    while row.generated < most:
        begun = masks.begin([row])
        assert begun is not None
        filled = begun.result()
        assert not filled.wrong, (schema, filled.wrong)
        scores = (draws.normal(0, 1, size) + 3 * closing).astype(np.float32)
        token = choose(scores, row.sampling, row.tokens, 1, seed, ends, may_follow(row, size, filled))
        if token in ends:
            return b"".join(vocabulary.pieces[each] for each in row.tokens[1:]).decode()
        row.tokens.append(token)
    return None


@settings(max_examples=40, deadline=None)
@given(SCHEMAS, st.integers(0, 2**31), st.sampled_from([0.0, 1.0]))
@example({"enum": ["é"]}, 0, 0.0)
def test_any_schema_of_many_is_kept(schema: Any, seed: int, temperature: float) -> None:
    keeps(Masks(Grammars(lambda: WITH_ACCENTS)), WITH_ACCENTS, schema, seed, temperature)


def keeps(masks: Masks, vocabulary: Vocabulary, schema: Any, seed: int, temperature: float) -> None:
    try:
        answer = drawn(masks, vocabulary, schema, seed, temperature, 300)
    finally:
        masks.close()
    if answer is not None:
        jsonschema.validate(json.loads(answer), schema)


@pytest.mark.slow
def test_any_schema_of_many_is_kept_in_a_real_vocabulary() -> None:
    from stepwell.backends.vocabulary import read_vocabulary
    from stepwell.backends.weights.opening import open_model

    needs_small_model()
    vocabulary = read_vocabulary(open_model("smollm2"))
    ready = Grammars(lambda: vocabulary)

    @settings(max_examples=60, deadline=None)
    @given(SCHEMAS, st.integers(0, 2**31), st.sampled_from([0.0, 1.0]))
    def check(schema: Any, seed: int, temperature: float) -> None:
        keeps(Masks(ready), vocabulary, schema, seed, temperature)

    check()
