"""From clients' words to a grammar, and to a refusal before anything is queued."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from stepwell.tests.transports.house import chat, client, error_of, flat_cost, make_service

from stepwell.core.errors import UserError  # isort: skip
from stepwell.core.execution import BackendInfo  # isort: skip
from stepwell.core.grammar import ANY_OBJECT, Grammar  # isort: skip
from stepwell.core.sampling import GREEDY, SamplingParams
from stepwell.sim.backend import EchoBackend
from stepwell.transports.http.formats import form_of, form_of_text, with_form
from stepwell.transports.http.requests import CHAT
from stepwell.transports.http.wanting import bad_words_of
from stepwell.transports.service import Service

SECRET = '{"type":"object","properties":{"mothers_maiden_name":{"type":"string"}}}'
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": json.loads(SECRET)}}


class Held(EchoBackend):
    """Says its prompt, whatever the grammar; notes what it was told of, and cannot follow one with ``spoil`` in it."""

    info = BackendInfo(model="echo", grammars=True, vocab_size=256)

    def __init__(self, **more: Any) -> None:
        super().__init__(cost=flat_cost(20_000), **more)
        self.prepared: list[Grammar] = []
        self.sampled: dict[int, SamplingParams] = {}

    def prepare(self, grammar: Grammar) -> None:
        if "never" in grammar.source:
            raise UserError("has a token that there is not")
        self.prepared.append(grammar)

    def admit(self, request: int, prompt: Any, max_tokens: int, sampling: Any = GREEDY, output: Any = ()) -> None:
        self.sampled[request] = sampling
        super().admit(request, prompt, max_tokens, sampling, output)

    def execute(self, batch: Any) -> Any:
        result = super().execute(batch)
        for request, sampling in self.sampled.items():
            if sampling.grammar is not None and "spoil" in sampling.grammar.source:
                result.spoiled += [(request, "it goes too far") for id, _ in result.tokens if id == request]
        return result


def read(grammar: Grammar) -> Grammar:
    """What a process does elsewhere."""
    if "bad" in grammar.source:
        raise UserError("is bad", field="elsewhere")
    return Grammar(grammar.kind, grammar.source.replace("gbnf", "lark"))


def held() -> tuple[Service, Held]:
    backend = Held()
    return make_service(backend=backend, read_grammar=read), backend


def asked(**fields: Any) -> Any:
    return CHAT.decode(json.dumps(chat("x", **fields)))


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "structured_outputs": None}, None),
        ({"structured_outputs": {}}, None),
        ({"response_format": {"type": "json_object"}}, ANY_OBJECT),
        ({"structured_outputs": {"json_object": True}}, ANY_OBJECT),
        ({"structured_outputs": {"json": {"type": "null"}}}, Grammar("json", '{"type": "null"}')),
        ({"structured_outputs": {"json": '{"type": "null"}'}}, Grammar("json", '{"type": "null"}')),
        ({"structured_outputs": {"regex": "a+"}}, Grammar("regex", "a+")),
        ({"structured_outputs": {"choice": ["a", "é"]}}, Grammar("choice", '["a","é"]')),
        ({"structured_outputs": {"grammar": "start: A"}}, Grammar("lark", "start: A")),
    ],
)
def test_what_clients_say_becomes_a_grammar(fields: Any, grammar: Grammar | None) -> None:
    made = asked(**fields)
    form = form_of(made.response_format, made.structured_outputs)
    assert (form.grammar if form else None) == grammar
    sampling = with_form(SamplingParams(), form)
    assert sampling.grammar == grammar


def test_the_three_places_of_a_schema_say_the_same() -> None:
    schema = Grammar("json", SECRET)
    chat_form = form_of(
        asked(response_format={"type": "json_schema", "json_schema": {"schema": 0}}).response_format, None
    )
    assert chat_form is not None
    assert chat_form.field == "response_format.json_schema.schema"
    raw = msgspec.Raw(SECRET.encode())
    from stepwell.transports.http.formats import JsonSchema, ResponseFormat, StructuredOutputs, TextFormat

    forms = [
        form_of(ResponseFormat("json_schema", JsonSchema(raw)), None),
        form_of(None, StructuredOutputs(json=raw)),
        form_of_text(TextFormat("json_schema", raw), None),
    ]
    assert [form.grammar if form else None for form in forms] == [schema] * 3


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format.json_schema.schema"),
    ({"response_format": SCHEMA, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "(" * 65}}, "structured_outputs.regex"),
    ({"structured_outputs": {"grammar": "x" * (65 << 10)}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"regex": "bad"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "never"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex"),
    ({"response_format": SCHEMA, "ignore_eos": True}, "ignore_eos"),
    ({"response_format": SCHEMA, "allowed_token_ids": [1]}, "allowed_token_ids"),
    ({"response_format": SCHEMA, "bad_words": ["x"]}, "bad_words"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [256]}, "allowed_token_ids"),
    ({"bad_words": [""]}, "bad_words[0]"),
    ({"bad_words": ["x"] * 65}, "bad_words"),
]


@pytest.fixture(scope="module")
def house() -> Any:
    service, backend = held()
    with client(service) as test_client:
        yield test_client, service, backend


@pytest.mark.parametrize(("fields", "field"), WRONG, ids=[f"{index}-{field}" for index, (_, field) in enumerate(WRONG)])
def test_what_is_wrong_is_a_400_that_names_it_and_nothing_is_queued(house: Any, fields: Any, field: str) -> None:
    test_client, service, backend = house
    before = service.engine._last_id
    response = test_client.post("/v1/chat/completions", json=chat("hello", **fields))
    status, _, param = error_of(response)
    assert (status, param) == (400, field)
    assert service.engine._last_id == before
    assert not backend.sampled


def test_a_model_that_keeps_to_no_grammar_says_so() -> None:
    """As it does of log-probabilities."""
    for service in (make_service(), make_service(read_grammar=read), make_service(backend=Held())):
        with client(service) as test_client:
            for fields in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"regex": "a"}}):
                response = test_client.post("/v1/chat/completions", json=chat("hello", **fields))
                assert error_of(response)[0] == 400
                assert "cannot be held to a grammar" in response.json()["error"]["message"]
            assert test_client.post("/v1/chat/completions", json=chat("hello")).status_code == 200


def post(test_client: TestClient, path: str, **body: Any) -> Any:
    response = test_client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_every_surface_hands_the_grammar_to_the_backend_read_and_prepared() -> None:
    service, backend = held()
    events: list[Any] = []
    with client(service) as test_client:
        service.engine._observers = [*service.engine._observers, lambda *some: events.append(some)]
        post(test_client, "/v1/chat/completions", **chat("hello", response_format=SCHEMA, n=2))
        post(test_client, "/v1/completions", prompt="hello", response_format=SCHEMA)
        post(test_client, "/v1/completions", prompt="hello", structured_outputs={"grammar": "gbnf"})
        format = {"type": "json_schema", "name": "n", "schema": json.loads(SECRET), "strict": True}
        said = post(test_client, "/v1/responses", input="hello", text={"format": format})
        assert said["text"]["format"] == format
        with test_client.websocket_connect("/v1/responses") as socket:
            socket.send_json({"type": "response.create", "input": "hello", "text": {"format": {"type": "json_object"}}})
            while socket.receive_json()["type"] != "response.completed":
                pass
    grammars = [sampling.grammar for sampling in backend.sampled.values()]
    schema = [json.loads(each.source) for each in grammars[:3] if each]
    assert schema == [json.loads(SECRET)] * 3
    assert grammars[3] == Grammar("lark", "lark")
    assert grammars[4] is not None
    assert grammars[5] == ANY_OBJECT
    assert all(each in backend.prepared for each in grammars)
    seen = repr(events)
    assert len(events) > 9
    assert "maiden" not in seen, "neither events nor instructions say what an answer looks like"


def test_one_that_is_ready_is_neither_read_nor_prepared_again() -> None:
    service, backend = held()
    with client(service) as test_client:
        for _ in range(3):
            post(test_client, "/v1/chat/completions", **chat("hello", structured_outputs={"regex": "a"}))
        assert backend.prepared.count(Grammar("regex", "a")) == 1
        service.engine.place.restarts = 1  # type: ignore[misc]
        post(test_client, "/v1/chat/completions", **chat("hello", structured_outputs={"regex": "a"}))
        assert backend.prepared.count(Grammar("regex", "a")) == 2, "another process does not have it"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_cannot_go_on_is_an_error_and_the_others_go_on(stream: bool) -> None:
    service, _ = held()
    with client(service) as test_client:
        body = chat("hello", structured_outputs={"regex": "spoil"}, stream=stream)
        response = test_client.post("/v1/chat/completions", json=body)
        assert "it goes too far" in response.text
        assert response.status_code == (200 if stream else 400)
        assert post(test_client, "/v1/chat/completions", **chat("hello"))["choices"][0]["message"]["content"] == "hello"


def test_bad_words_are_spelled_as_a_text_begins_and_as_it_goes_on() -> None:
    encode = lambda text: list(text.encode())  # noqa: E731
    assert bad_words_of(["ab", " ab", "c"], encode) == ((97, 98), (32, 97, 98), (99,), (32, 99))
