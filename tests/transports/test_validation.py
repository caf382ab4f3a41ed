"""What clients send wrongly is named, costs nothing, and hurts nobody else."""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import anyio
import pytest

from stepwell.core.errors import UserError
from stepwell.tests.transports.house import Call, chat, client, error_of, idle, make_service, until, visit

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BAD = 400, "invalid_value"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (TEXT, {"prompt": ""}, "prompt"),
        (TEXT, {"prompt": [""]}, "prompt[0]"),
        (TEXT, {"prompt": []}, "prompt"),
        (TEXT, {"prompt": [[]]}, "prompt[0]"),
        (TEXT, {"prompt": None}, "prompt"),
        (TEXT, {}, "prompt"),
        (TEXT, {"prompt": "x", "max_tokens": 0}, "max_tokens"),
        (TEXT, {"prompt": "x", "max_tokens": 0, "echo": True, "logprobs": 1}, "logprobs"),
        (TEXT, {"prompt": "x", "echo": True, "logprobs": 6}, "logprobs"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {}, "messages"),
        (CHAT, chat(""), "messages"),
        (CHAT, chat(max_completion_tokens=0), "max_completion_tokens"),
    ],
)
def test_eo_3_nothing_to_do_is_refused_and_the_next_request_is_served(
    path: str, body: dict[str, Any], field: str
) -> None:
    service = make_service()
    with client(service) as http:
        assert error_of(http.post(path, json=body)) == (*BAD, field)
        assert http.post(CHAT, json=chat()).json()["choices"][0]["message"]["content"] == "hello"
    assert service.metrics.accepted == 1
    assert idle(service)


def test_eo_3_no_limit_is_the_rest_of_the_context() -> None:
    service = make_service(memory={"pages": 8}, lengths=dict.fromkeys((1, 2), 1000))
    with client(service) as http:
        for fields in ({"max_tokens": None}, {}):
            choice = http.post(TEXT, json={"prompt": "abcd", **fields}).json()["choices"][0]
            assert (len(choice["text"]), choice["finish_reason"]) == (28, "length")


def test_in_1_the_real_limit_is_the_one_that_is_checked() -> None:
    """Configured for 8192, room for 2048: 2,047 tokens and one new one fit."""
    service = make_service(memory={"pages": 128, "page_size": 16})
    with client(service) as http:
        assert http.get("/v1/models").json()["data"][0]["max_model_len"] == 2048
        for tokens in (2048, 2100, 10**6):
            answer = http.post(TEXT, json={"prompt": "x" * tokens})
            assert error_of(answer) == (400, "context_length_exceeded", "prompt")
            assert "2048" in answer.json()["error"]["message"]
        assert service.metrics.accepted == 0
        choice = http.post(TEXT, json={"prompt": "x" * 2047}).json()["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("x", "length")


def test_in_1_a_prompt_that_is_provably_too_long_is_not_tokenised() -> None:
    class Shy:
        vocab_size, end_tokens = 256, frozenset[int]()

        def encode(self, text: str, *, special: bool = False) -> list[int]:
            raise AssertionError("tokenised")

        def token_bytes(self, token: int) -> bytes:
            return b"xx"

        def decode(self, tokens: Any) -> bytes:
            return b""

    def template(messages: Any, arguments: Any) -> list[int]:
        raise AssertionError("rendered")

    with client(make_service(memory={"pages": 10}, tokenizer=Shy(), template=template)) as http:
        for answer in (http.post(TEXT, json={"prompt": "x" * 81}), http.post(CHAT, json=chat("x" * 81))):
            assert error_of(answer)[:2] == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ('"n": 10000', "n"),
        ('"n": 17', "n"),
        ('"n": 0', "n"),
        ('"logprobs": true, "top_logprobs": 2000000000', "top_logprobs"),
        ('"logprobs": true, "top_logprobs": -1', "top_logprobs"),
        ('"top_logprobs": 3', "top_logprobs"),
        ('"logprobs": true', "logprobs"),
        ('"stop": ""', "stop"),
        ('"stop": ["a", ""]', "stop[1]"),
        ('"stop": [' + ",".join(f'"{each:0128}"' for each in range(9)) + "]", "stop"),
        ('"stop": [' + '"a",' * 499_999 + '"a"]', "stop"),
        ('"temperature": NaN', "temperature"),
        ('"temperature": -Infinity', "temperature"),
        ('"temperature": 1e999', "temperature"),
        ('"temperature": -1', "temperature"),
        ('"temperature": "0.7"', "temperature"),
        ('"top_p": 0', "top_p"),
        ('"max_tokens": 9223372036854775808', "max_tokens"),
        ('"max_tokens": 1.5', "max_tokens"),
        ('"logit_bias": {"256": 1}', "logit_bias"),
        ('"logit_bias": {"1": 101}', "logit_bias"),
        ('"logit_bias": {"x": 1}', "logit_bias"),
        ('"seed": 1e3', "seed"),
        ('"min_tokens": 3, "max_tokens": 2', "min_tokens"),
        ('"response_format": {"type": "json_object"}', "response_format"),
        ('"tool_choice": "required"', "tool_choice"),
        ('"stream_options": {"include_usage": "yes"}', "stream_options.include_usage"),
    ],
)
def test_in_4_out_of_range_is_named_before_anything_is_done(fields: str, field: str) -> None:
    service = make_service()
    body = '{"messages": [{"role": "user", "content": "x"}], ' + fields + "}"
    with client(service) as http:
        status, _, named = error_of(http.post(CHAT, content=body))
    assert (status, named) == (400, field)
    assert service.metrics.accepted == 0


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff\xfe", b'{"messages": ' + b"[" * 100_000, b"null", b'"x"'])
def test_in_4_what_is_no_request_at_all(body: bytes) -> None:
    with client(make_service()) as http:
        assert error_of(http.post(CHAT, content=body))[0] == 400


def test_in_4_odd_but_right() -> None:
    """Almost no temperature is none; parts are joined; unknown fields are ignored; null is for assistants."""
    service = make_service()
    seen: list[Any] = []
    admit = service.engine.place.admit

    def noting(request: int, prompt: Any, max_tokens: int, sampling: Any) -> None:
        seen.append(sampling)
        admit(request, prompt, max_tokens, sampling)

    service.engine.place.admit = noting  # type: ignore[method-assign,assignment]
    parts = [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]
    with client(service) as http:
        for body in (
            chat(temperature=1e-9, top_k=-1, seed=-1, nonsense={"a": [1]}),
            chat(parts),
            {"messages": [{"role": "assistant", "content": None}, *chat()["messages"]]},
            chat(logprobs=False, top_logprobs=0),
        ):
            assert http.post(CHAT, json=body).json()["choices"][0]["message"]["content"] == "hello"
        assert error_of(http.post(CHAT, json=chat(None))) == (*BAD, "messages[0].content")
        for wrong in ([*parts, {"type": "image_url"}], [*parts, {"type": "text"}]):
            assert error_of(http.post(CHAT, json=chat(wrong))) == (*BAD, "messages[0].content[2]")
    assert (seen[0].temperature, seen[0].top_k, seen[0].seed) == (0.0, 0, (1 << 63) - 1)


def test_in_4_a_template_that_refuses_is_the_clients_mistake() -> None:
    def alternating(messages: Any, arguments: Any) -> list[int]:
        raise UserError("roles must alternate", field="messages")

    with client(make_service(template=alternating)) as http:
        assert error_of(http.post(CHAT, json=chat())) == (*BAD, "messages")


def test_in_6_ids_of_clients_are_only_said_back() -> None:
    service = make_service(lengths={1: 50, 2: 50})

    async def test(app: Any) -> None:
        calls = [Call(CHAT, chat(content, stream=True)) for content in ("aaaa", "bbbb")]
        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(call.run, app)
        for call, letter in zip(calls, "ab", strict=True):
            assert call.text.count(f'"content":"{letter}') > 0
            assert '"content":"' + "ab".replace(letter, "") not in call.text

    visit(service, test)
    with client(make_service()) as http:
        seen = set()
        for given, back in (("a", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("é", False)):
            answer = http.post(CHAT, json=chat(), headers={b"X-Request-Id": given.encode()})
            assert (answer.headers["x-request-id"] == given) is back
            assert "x" * 129 not in answer.text
            seen.add(answer.json()["id"])
        for _ in range(5):
            seen.add(http.post(CHAT, json=chat()).headers["x-request-id"])
        assert len(seen) == 10


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_body_is_not_kept_for_the_life_of_a_stream(path: str) -> None:
    service = make_service(lengths={1: 300}, step_us=500)
    body = json.dumps({**chat("x" * 99), "prompt": "x" * 99, "stream": True, "tool_choice": "none"}).encode()

    async def test(app: Any) -> None:
        call = Call(path, {})
        receive, given = call.receive, False

        async def receiving() -> dict[str, Any]:
            nonlocal given
            if given:
                call._asked = True
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        call.receive = receiving  # type: ignore[method-assign]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call.run, app)
            await until(lambda: len(call.parts) > 2)
            assert sys.getrefcount(body) == held
            call.left.set()

    held = sys.getrefcount(body)
    visit(service, test)


def test_bodies_are_bounded() -> None:
    with client(make_service(server={"body_mib": 0.01})) as http:
        big = json.dumps(chat("x" * 20_000))
        assert error_of(http.post(CHAT, content=big)) == (413, "request_too_large", None)
        assert error_of(http.post(CHAT, content=iter([big[:15_000].encode(), big[15_000:].encode()])))[0] == 413
        assert error_of(http.post(CHAT, json=chat(), headers={"Content-Length": "99999999"}))[0] == 413


def many(item: str, size: int = 2 << 20) -> str:
    """A list of so many of these."""
    return "[" + ",".join([item] * (size // (len(item) + 1))) + "]"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (TEXT, '{"prompt": ' + many("[]") + "}", "prompt"),
        (TEXT, '{"prompt": ' + many('""') + "}", "prompt"),
        (TEXT, '{"prompt": ' + many("1") + "}", "prompt"),
        (TEXT, '{"prompt": [' + many("1") + "]}", "prompt[0]"),
        (TEXT, '{"prompt": ' + many("{}") + "}", "prompt"),
        (TEXT, '{"prompt": [' + many("[]") + "]}", "prompt[0]"),
        (CHAT, '{"messages": ' + many('{"role": "a"}') + "}", "messages"),
        (CHAT, '{"messages": [{"role": "user", "content": "x", "tool_calls": ' + many("[]") + "}]}", "messages"),
        (CHAT, '{"messages": [], "chat_template_kwargs": {"a": ' + many("[]") + "}}", "chat_template_kwargs"),
        (CHAT, '{"messages": [], "logit_bias": ' + many("1") + "}", "logit_bias"),
        (CHAT, '{"messages": [], "stop": [], "stop": ' + many('"a"') + ', "stop": []}', None),
    ],
)
def test_in_4_lists_of_millions_are_refused_before_anything_is_made_of_them(
    path: str, body: str, field: str | None
) -> None:
    service = make_service()
    gc.collect()
    gc.disable()
    try:
        with client(service) as http:
            before = gc.get_count()[0]
            answer = http.post(path, content=body)
            made = gc.get_count()[0] - before
    finally:
        gc.enable()
    assert (error_of(answer)[0], error_of(answer)[2]) == (400, field)
    assert made < 50_000
    assert service.metrics.accepted == 0


@pytest.mark.parametrize("space", ["", " ", "\n" * 1000])
def test_every_shape_of_a_prompt_with_spaces_in_it(space: str) -> None:
    with client(make_service(lengths=dict.fromkeys(range(1, 20), 1))) as http:
        for prompt, choices in (
            ('"a"', 1),
            ("[<97<,<98<]", 1),
            ('[<"a"<,<"b"<]', 2),
            ('[<[<97<]<,<"b"<,<[<98,99<]<]', 3),
        ):
            body = '{<"prompt"<:<' + prompt + "<}"
            answer = http.post(TEXT, content=body.replace("<", space))
            assert len(answer.json()["choices"]) == choices


def test_a_full_house_says_when_to_come_again() -> None:
    service = make_service(step_us=1e6, scheduler={"max_waiting": 1, "running_limit": 1, "token_budget": 64})

    async def test(app: Any) -> None:
        calls = [Call(CHAT, chat()) for _ in range(4)]
        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(call.run, app)
            with anyio.fail_after(30):
                while sum(call.status == 429 for call in calls) < 2:
                    await anyio.sleep(0.005)
            for call in calls:
                call.left.set()
        codes = [json.loads(call.text)["error"]["code"] for call in calls if call.status == 429]
        assert set(codes) == {"queue_full"}
        service.drain()
        late = Call(CHAT, chat())
        await late.run(app)
        assert (late.status, json.loads(late.text)["error"]["code"]) == (503, "draining")

    visit(service, test)


def test_refusals_say_when_to_retry() -> None:
    service = make_service(server={"max_streams": 1})
    with client(service) as http:
        answer = http.post(CHAT, json=chat(n=2))
        assert error_of(answer)[:2] == (429, "too_many_streams")
        assert answer.headers["retry-after"] == "5", "nothing is known yet"
        service.drain()
        answer = http.post(CHAT, json=chat())
        assert error_of(answer)[:2] == (503, "draining")
        assert "retry-after" in answer.headers


def test_routes_that_are_not_there() -> None:
    with client(make_service()) as http:
        assert error_of(http.get("/nope"))[0] == 404
        assert error_of(http.post("/v1/embeddings", json={}))[0] == 404
        assert error_of(http.get(CHAT))[0] == 405
        assert error_of(http.get("/v1/models/gpt"))[:2] == (404, "model_not_found")
        assert http.get("/v1/models/echo").json()["id"] == "echo"
        assert error_of(http.post(CHAT, json=chat(model="gpt"))) == (404, "model_not_found", "model")


def test_cross_origin_pages_are_let_in_by_name_only() -> None:
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    with client(make_service(server={"origins": ("https://chat.example",)})) as http:
        friend = http.options(CHAT, headers={"Origin": "https://chat.example", **ask})
        assert friend.headers["access-control-allow-origin"] == "https://chat.example"
        stranger = http.options(CHAT, headers={"Origin": "https://evil.example", **ask})
        assert "access-control-allow-origin" not in stranger.headers
    with client(make_service()) as http:
        assert (
            "access-control-allow-origin" not in http.get("/v1/models", headers={"Origin": "https://a.example"}).headers
        )


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"tools": [{"type": "web_search", "function": {"name": "f"}}]}, "tools[0].type", "only function"),
        ({"tools": [], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", "only function"),
    ],
)
def test_in_4_what_is_one_of_a_few_words_is_told_which(fields: dict[str, Any], field: str, words: str) -> None:
    with client(make_service()) as http:
        answer = http.post(CHAT, json=chat(**fields))
        assert error_of(answer) == (400, "invalid_value", field)
        assert words in answer.json()["error"]["message"]
        answer = http.post("/v1/responses", json={"input": "x", "truncation": "sometimes"})
        assert "it is one of auto, disabled" in answer.json()["error"]["message"]


def test_a_method_that_is_not_there_is_told_which_are() -> None:
    with client(make_service()) as http:
        for path, allowed in ((CHAT, {"POST"}), ("/v1/responses/x", {"GET", "HEAD"})):
            answer = http.put(path)
            assert error_of(answer)[:2] == (405, "method_not_allowed")
            assert set(answer.headers["allow"].split(", ")) >= allowed
