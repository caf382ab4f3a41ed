"""Fields of chats and texts to complete that say how the answer is shown, and those that are read over."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.tests.transports.house import chat, client, error_of, events, idle, make_service


@pytest.mark.parametrize("stream", [True, False])
def test_token_ids_go_with_their_text(stream: bool) -> None:
    with client(make_service()) as http:
        answer = http.post("/v1/chat/completions", json=chat("hé", stream=stream, return_token_ids=True, n=2))
        chunks = events(answer.text) if stream else [answer.json()]
        texts = http.post("/v1/completions", json={"prompt": ["ab", [99]], "return_token_ids": True}).json()["choices"]
        plain = http.post("/v1/completions", json={"prompt": "ab", "stream": True, "return_token_ids": True})
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in (0, 1):
        own = [each for each in choices if each["index"] == index]
        assert [id for each in own for id in each.get("token_ids") or ()] == [104, 195, 169]
    prompts = [each["prompt_token_ids"] for each in (choices if stream else chunks) if "prompt_token_ids" in each]
    assert prompts == [[104, 195, 169]] * len(prompts)
    assert prompts
    assert [(each["prompt_token_ids"], each["token_ids"]) for each in texts] == [([97, 98], [97, 98]), ([99], [99])]
    pieces = [each["choices"][0] for each in events(plain.text)]
    assert [id for each in pieces for id in each.get("token_ids") or ()] == [97, 98]
    assert pieces[0]["prompt_token_ids"] == [97, 98]


def test_a_stream_in_larger_pieces() -> None:
    """The first token waits for nobody, and neither does the last."""
    with client(make_service(step_us=300)) as http:
        asked = chat("x" * 23, stream=True, stream_interval=10)
        chunks = events(http.post("/v1/chat/completions", json=asked).text)
    pieces = [each["choices"][0]["delta"].get("content", "") for each in chunks[1:]]
    assert "".join(pieces) == "x" * 23
    assert len([each for each in pieces if each]) <= 4
    assert all(len(each) >= 10 for each in pieces[1:-2] if each)


def test_a_salt_keeps_prefixes_apart() -> None:
    service = make_service(lengths=dict.fromkeys(range(1, 99), 2), memory={"allocator": "prefix"})
    with client(service) as http:

        def cached(path: str, **fields: Any) -> int:
            body = chat("x" * 12) if path.startswith("chat") else {"prompt": "x" * 12}
            usage = http.post(f"/v1/{path}", json={**body, **fields}).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        assert [cached("chat/completions") for _ in range(2)] == [0, 8]
        for path in ("chat/completions", "completions"):
            assert [cached(path, cache_salt=path) for _ in range(2)] == [0, 8]
        assert cached("chat/completions") == 8
        assert idle(service)


def test_a_salt_keeps_prefixes_of_responses_apart() -> None:
    service = make_service(lengths=dict.fromkeys(range(1, 99), 2), memory={"allocator": "prefix"})
    with client(service) as http:

        def cached(**fields: Any) -> int:
            usage = http.post("/v1/responses", json={"input": "x" * 12, **fields}).json()["usage"]
            return int(usage["input_tokens_details"]["cached_tokens"])

        assert [cached() for _ in range(2)] == [0, 8]
        assert [cached(cache_salt="mine") for _ in range(2)] == [0, 8]
        assert [cached(cache_salt="yours"), cached()] == [0, 8]
        assert idle(service)


def test_in_6_a_request_s_name_comes_back_in_one_header_only() -> None:
    with client(make_service()) as http:
        for path, body in (("chat/completions", chat()), ("completions", {"prompt": "x"})):
            answer = http.post(f"/v1/{path}", json={**body, "request_id": "mine-1"})
            assert answer.headers["x-request-id"] == "mine-1"
            assert "mine-1" not in answer.text
            answer = http.post(f"/v1/{path}", json={**body, "request_id": "a"}, headers={"X-Request-Id": "b"})
            assert answer.headers["x-request-id"] == "b"
            for bad in ("", "x" * 129, "a b", "a\r\nb", 7):
                told = error_of(http.post(f"/v1/{path}", json={**body, "request_id": bad}))
                assert told == (400, "invalid_value", "request_id")


@pytest.mark.parametrize("stream", [True, False])
def test_times_are_told_to_those_who_ask(stream: bool) -> None:
    service = make_service(step_us=2000)
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    with client(service) as http:
        answer = http.post("/v1/chat/completions", json=chat("abcdef", include_metrics=True, n=2, **options))
        told = events(answer.text)[-1] if stream else answer.json()
        plain = http.post("/v1/completions", json={"prompt": "abc"}).json()
        one = http.post("/v1/completions", json={"prompt": "a", "include_metrics": True}).json()["metrics"]
    metrics = told["metrics"]
    assert list(metrics) == [
        *("time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second"),
        *("preemptions", "policy", "step_count"),
    ]
    assert metrics["time_to_first_token_ms"] >= metrics["queue_time_ms"] >= 0
    assert metrics["time_to_first_token_ms"] >= 2
    assert metrics["generation_time_ms"] >= 5 * 2
    assert metrics["mean_itl_ms"] == pytest.approx(metrics["generation_time_ms"] / 5, rel=0.01)
    assert (metrics["preemptions"], metrics["policy"]) == (0, "fcfs")
    assert metrics["step_count"] >= 6
    assert told["usage"]["completion_tokens"] == 12
    assert "metrics" not in plain
    assert (one["mean_itl_ms"], one["tokens_per_second"]) == (None, None)
    assert not service.times._watched


IGNORED: dict[str, Any] = {
    "store": True,
    "metadata": {"a": "b"},
    "verbosity": "low",
    "prediction": {"type": "content", "content": "x"},
    "modalities": ["text"],
    "prompt_cache_options": {"mode": "implicit"},
    "vllm_xargs": {"a": 1},
    "mm_processor_kwargs": None,
    "nobody_has_this": [1, {"a": None}],
}


@pytest.mark.parametrize("name", IGNORED)
def test_what_is_not_known_is_read_over(name: str) -> None:
    with client(make_service()) as http:
        answer = http.post("/v1/chat/completions", json=chat(**{name: IGNORED[name]}))
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["message"]["content"] == "hello"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"stream_interval": 0}, "stream_interval"),
        ({"stream_interval": 1025}, "stream_interval"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "x" * 1025}, "cache_salt"),
        ({"return_token_ids": 1}, "return_token_ids"),
        ({"include_metrics": "yes"}, "include_metrics"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort"),
    ],
)
def test_in_4_a_wrong_value_is_named(fields: dict[str, Any], field: str) -> None:
    with client(make_service()) as http:
        assert error_of(http.post("/v1/chat/completions", json=chat(**fields))) == (400, "invalid_value", field)


def test_an_error_is_no_larger_than_it_must_be() -> None:
    """vLLM measured answers 5,300 times the size of the mistake."""
    bad = [{"role": "user", "content": [{"type": "x" * 1000}] * 2000}] * 2
    with client(make_service()) as http:
        for body in ({"messages": bad}, chat(tools=[{"type": "y" * 1000}] * 100), chat(stop=["z" * 2000] * 16)):
            answer = http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 400
            assert len(answer.content) < 1000
