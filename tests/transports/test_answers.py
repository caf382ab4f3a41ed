"""Answers over HTTP: their text, their frames, their usage, and that asking differently gives the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from stepwell.core.events import Event
from stepwell.core.instructions import Instruction, Launch
from stepwell.core.journal_file import JournalWriter
from stepwell.core.protocols import CostModel, StepResult
from stepwell.core.sampling import GREEDY, SamplingParams, TokenLogprob
from stepwell.sim.backend import EchoBackend
from stepwell.sim.explain import explain
from stepwell.tests.core.journals import replays
from stepwell.tests.core.shells import header_of
from stepwell.tests.transports.house import Call, chat, client, events, flat_cost, idle, make_service, visit


def text_of(chunks: list[Any], index: int = 0) -> str:
    found = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in found)


def test_streamed_and_not_say_the_same() -> None:
    service = make_service()
    with client(service) as http:
        for content in ("hello", "grüß dich 🙂", "a\nb\r\nc\0d\u2028e", "x" * 300):
            whole = http.post("/v1/chat/completions", json=chat(content)).json()
            assert whole["object"] == "chat.completion"
            assert whole["choices"][0]["message"] == {"role": "assistant", "content": content, "refusal": None}
            assert whole["choices"][0]["finish_reason"] == "stop"
            streamed = events(http.post("/v1/chat/completions", json=chat(content, stream=True)).text)
            assert text_of(streamed) == content
            assert streamed[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            assert [each["choices"][0]["finish_reason"] for each in streamed][-1] == "stop"
            assert {each["object"] for each in streamed} == {"chat.completion.chunk"}
            assert len({each["id"] for each in streamed}) == 1
        assert idle(service)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_names_its_numbers_in_the_journal(stream: bool) -> None:
    with client(make_service()) as http:
        for numbers in ("1", "2"):
            answer = http.post("/v1/chat/completions", json=chat(stream=stream))
            assert answer.headers["x-stepwell-request"] == numbers
        answer = http.post("/v1/completions", json={"prompt": ["ab", "cd"], "n": 2, "stream": stream})
        assert answer.headers["x-stepwell-request"] == "3,4,5,6"


def test_hs_3_heads_and_frames() -> None:
    with client(make_service()) as http:
        answer = http.post("/v1/chat/completions", json=chat(stream=True))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers
    assert "content-encoding" not in answer.headers


def test_hs_3_a_silent_stream_gets_pings_from_acceptance_on() -> None:
    service = make_service(step_us=200_000, server={"ping_s": 0.02})

    async def test(app: Any) -> None:
        call = Call("/v1/chat/completions", chat("ab", stream=True))
        await call.run(app)
        opening, pinged, rest = call.text.partition(": keep-alive\n\n")
        assert '"role":"assistant"' in opening
        assert pinged
        assert '"content":"a"' in rest
        assert text_of(events(call.text)) == "ab"

    visit(service, test)


@pytest.mark.parametrize("include", [True, False, None])
def test_ou_1_usage_is_said_once(include: bool | None) -> None:
    """n = 3, a prompt of 12 tokens, answers of 5, 7 and 7."""
    service = make_service(lengths={1: 5, 2: 7, 3: 7, 4: 5, 5: 7, 6: 7})
    wanted = {"prompt_tokens": 12, "completion_tokens": 19, "total_tokens": 31}
    with client(service) as http:
        whole = http.post("/v1/chat/completions", json=chat("x" * 12, n=3)).json()
        assert {key: whole["usage"][key] for key in wanted} == wanted
        assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        assert [len(each["message"]["content"]) for each in whole["choices"]] == [5, 7, 7]
        options = {} if include is None else {"stream_options": {"include_usage": include}}
        chunks = events(http.post("/v1/chat/completions", json=chat("x" * 12, n=3, stream=True, **options)).text)
    assert [len(text_of(chunks, index)) for index in range(3)] == [5, 7, 7]
    ends = [place for place, each in enumerate(chunks) if each["choices"] and each["choices"][0]["finish_reason"]]
    assert len(ends) == 3
    if include:
        last = chunks.pop()
        assert last["choices"] == []
        assert {key: last["usage"][key] for key in wanted} == wanted
        assert all(each["usage"] is None for each in chunks)
        assert max(ends) == len(chunks) - 1
    else:
        assert all("usage" not in each and each["choices"] for each in chunks)


def test_ou_1_cached_tokens_are_those_of_the_prompt_once() -> None:
    """The same prompt of 12 tokens, in pages of 4: the last one is always computed, at least in part."""
    lengths = dict.fromkeys(range(1, 20), 5)
    service = make_service(lengths=lengths, memory={"allocator": "prefix"})
    with client(service) as http:
        found = []
        for content in ("x" * 12, "x" * 12, "x" * 13, "x" * 8 + "y" * 4, "y" + "x" * 11):
            usage = http.post("/v1/chat/completions", json=chat(content, n=3)).json()["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(content), 15)
            found.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert found == [0, 8, 12, 8, 0]
        options = {"stream_options": {"include_usage": True}}
        chunks = events(http.post("/v1/chat/completions", json=chat("x" * 12, stream=True, **options)).text)
        assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 8}
        metrics = http.get("/metrics").text
        assert 'vllm:prefix_cache_hits_total{engine="0",model_name="echo"} 36.0' in metrics
        assert idle(service)


def test_a_next_turn_finds_the_answer_over_http_and_websocket() -> None:
    """The echo says "xxxxx"; of those 17 tokens the last is not computed, and four pages of 4 are found."""
    service = make_service(lengths=dict.fromkeys(range(1, 20), 5), memory={"allocator": "prefix"})
    with client(service) as http, http.websocket_connect("/v1/responses") as socket:
        for turn, found in (("x" * 12, 0), ("x" * 20, 16), ("y" * 12, 0)):
            usage = http.post("/v1/chat/completions", json=chat(turn)).json()["usage"]
            assert usage["prompt_tokens_details"] == {"cached_tokens": found}
        socket.send_json({"type": "response.create", "model": "echo", "input": "y" * 40})
        event: dict[str, Any] = {}
        while event.get("type") != "response.completed":
            event = json.loads(socket.receive_text())
        assert event["response"]["usage"]["input_tokens_details"]["cached_tokens"] == 16


@pytest.mark.parametrize("allocator", ["paged", "prefix", "contiguous"])
def test_choices_of_a_prompt_compute_it_once_and_the_journal_of_it_replays(tmp_path: Path, allocator: str) -> None:
    """200 tokens and, for each of seven others, the last of them again; then one token a step for all eight."""
    prompt = "say it again" * 16 + "12345678"
    steps: list[Launch] = []

    def observe(now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        steps.extend(each for each in out if isinstance(each, Launch))
        writer.observe(now_ns, events, out)

    service = make_service(memory={"allocator": allocator, "pages": 1200}, observers=[observe])
    writer = JournalWriter(tmp_path / "run.jsonl", header_of(service.config, service.scheduler), lambda: b"null")
    with client(service) as http:
        answer = http.post("/v1/chat/completions", json=chat(prompt, n=8, max_tokens=220)).json()
        assert idle(service)
    writer.close()
    assert [each["message"]["content"] for each in answer["choices"]] == [prompt] * 8
    slices = [row for each in steps for row in each.slices]
    assert slices == [(1, 0, 200, True), *((id, 199, 1, True) for id in range(2, 9))]
    assert sum(len(each.copies) for each in steps) == 7 * (50 if allocator == "contiguous" else 1)
    assert replays(tmp_path / "run.jsonl").steps == len(steps)
    story = " ".join(explain(tmp_path / "run.jsonl", 5).lines())
    assert "another choice of the prompt of request 1;" in story
    assert "199 tokens of its prompt shared with request 1" in story


def test_long_prompts_are_keyed_off_the_loop_and_alike() -> None:
    service = make_service(memory={"allocator": "prefix", "pages": 4000})

    async def keys() -> list[list[list[int]]]:
        return [
            await service.keys(prompts, tenant)
            for prompts, tenant in (([[1] * 9000], "a"), ([[1] * 10], "a"), ([[1] * 10], "b"))
        ]

    (long,), (short,), (other,) = anyio.run(keys)
    assert len(long) == 2250
    assert short == long[:2]
    assert not set(other) & set(short), "tenants find nothing of each other"
    (none,) = anyio.run(make_service(memory={"allocator": "paged"}).keys, [[1] * 10], "a")
    assert none == []


def test_ou_1_prompts_count_once_each() -> None:
    with client(make_service()) as http:
        answer = http.post("/v1/completions", json={"prompt": ["abc", [100, 101]], "n": 2, "max_tokens": 1}).json()
    assert [(each["index"], each["text"]) for each in answer["choices"]] == [(0, "a"), (1, "a"), (2, "d"), (3, "d")]
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 4)


def test_usage_as_it_grows() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    with client(make_service()) as http:
        chunks = events(http.post("/v1/chat/completions", json=chat(stream=True, stream_options=options)).text)
    counts = [each["usage"]["completion_tokens"] for each in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 5


def test_completions_take_every_kind_of_prompt_and_echo() -> None:
    with client(make_service()) as http:
        for prompt in ("ab", ["ab"], [97, 98], [[97, 98]]):
            answer = http.post("/v1/completions", json={"prompt": prompt, "echo": True}).json()
            assert [each["text"] for each in answer["choices"]] == ["abab"]
            chunks = events(http.post("/v1/completions", json={"prompt": prompt, "echo": True, "stream": True}).text)
            assert "".join(each["choices"][0]["text"] for each in chunks) == "abab"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_and_is_not_in_it(stream: bool) -> None:
    service = make_service(lengths=dict.fromkeys(range(1, 9), 400))
    with client(service) as http:
        answer = http.post(
            "/v1/chat/completions", json=chat("say END now ", stop=["ND n", "zzz"], max_tokens=300, stream=stream)
        )
        if stream:
            chunks = events(answer.text)
            assert text_of(chunks) == "say E"
            assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        else:
            assert answer.json()["choices"][0]["message"]["content"] == "say E"
            assert answer.json()["usage"]["completion_tokens"] == 9
    assert idle(service)


def test_max_tokens_ends_with_length() -> None:
    with client(make_service()) as http:
        for field in ("max_tokens", "max_completion_tokens"):
            answer = http.post("/v1/chat/completions", json=chat("abcdef", **{field: 2})).json()
            assert (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]) == (
                "ab",
                "length",
            )


class Confident(EchoBackend):
    """Gives log-probabilities: the token's number, and one alternative."""

    def execute(self, batch: Launch) -> StepResult:
        result = super().execute(batch)
        for request, token in result.tokens:
            result.logprobs[request] = TokenLogprob(-float(token), [(token, -float(token)), (97, -0.5)])
        return result


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_go_with_their_tokens(stream: bool) -> None:
    backend = Confident(cost=flat_cost(20_000))
    with client(make_service(backend=backend, logprobs=True)) as http:
        asked = chat("xyz", logprobs=True, top_logprobs=2, stream=stream)
        answer = http.post("/v1/chat/completions", json=asked)
        choices = [chunk["choices"][0] for chunk in (events(answer.text) if stream else [answer.json()])]
        rows = [row for choice in choices for row in (choice["logprobs"] or {}).get("content", [])]
        plain = http.post("/v1/completions", json={"prompt": "xy", "logprobs": 1}).json()["choices"][0]["logprobs"]
    assert [(row["token"], row["logprob"], row["bytes"]) for row in rows] == [
        ("x", -120.0, [120]),
        ("y", -121.0, [121]),
        ("z", -122.0, [122]),
    ]
    assert rows[0]["top_logprobs"][1] == {"token": "a", "logprob": -0.5, "bytes": [97]}
    assert plain["tokens"] == ["x", "y"]
    assert plain["token_logprobs"] == [-120.0, -121.0]
    assert plain["text_offset"] == [0, 1]


class Examined(Confident):
    """Gives log-probabilities of prompts too, in slices as they are computed."""

    def __init__(self, cost: CostModel) -> None:
        super().__init__(cost=cost)
        self.prompts: dict[int, list[int]] = {}

    def admit(
        self,
        request: int,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
        output: Sequence[int] = (),
    ) -> None:
        super().admit(request, prompt, max_tokens, sampling, output)
        if sampling.prompt_logprobs >= 0:
            self.prompts[request] = list(prompt)

    def execute(self, batch: Launch) -> StepResult:
        result = super().execute(batch)
        for request, start, count, _ in batch.slices:
            rows = [TokenLogprob(-float(each)) for each in self.prompts.get(request, [])[start + 1 : start + count + 1]]
            result.prompt_logprobs.append((request, start + 1, rows))
        return result


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("most", [0, 2])
@pytest.mark.parametrize("prompt", ["x", "xyzxyzxyzx"])
def test_eo_3_an_echo_has_the_prompt_s_log_probabilities(stream: bool, most: int, prompt: str) -> None:
    backend = Examined(flat_cost(20_000))
    service = make_service(backend=backend, logprobs=True, scheduler={"token_budget": 4, "running_limit": 2})
    asked: dict[str, Any] = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": most, "stream": stream}
    with client(service) as http:
        answer = http.post("/v1/completions", json=asked | {"stream_options": {"include_usage": True}})
        chunks = events(answer.text) if stream else [answer.json()]
        again = http.post("/v1/completions", json={"prompt": "ab"}).json()
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    said = list((prompt + prompt)[: len(prompt) + min(most, len(prompt))])
    assert "".join(each["text"] for each in choices) == "".join(said)
    rows = [each["logprobs"] for each in choices if each["logprobs"]]
    tokens, values, tops, offsets = (
        [value for row in rows for value in row[name]]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    )
    assert tokens == said
    assert values == [None, *(-float(ord(each)) for each in said[1:])]
    assert (tops[0], offsets) == (None, list(range(len(said))))
    assert choices[-1]["finish_reason"] == ("length" if most < len(prompt) else "stop")
    assert chunks[-1]["usage"]["completion_tokens"] == min(most, len(prompt))
    assert again["choices"][0]["text"] == "ab"
    assert idle(service)


def test_eo_3_an_echo_of_nothing_more_needs_no_log_probabilities() -> None:
    with client(make_service()) as http:
        asked = {"prompt": ["ab", "cd"], "echo": True, "max_tokens": 0, "n": 2}
        answer = http.post("/v1/completions", json=asked).json()
    assert [each["text"] for each in answer["choices"]] == ["ab", "ab", "cd", "cd"]
    assert [each["finish_reason"] for each in answer["choices"]] == ["length"] * 4
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (4, 0)


def test_a_failure_in_the_middle_is_said_in_every_dialect() -> None:
    class Breaks(EchoBackend):
        def execute(self, batch: Launch) -> StepResult:
            if batch.step == 4:
                raise RuntimeError("the driver is gone")
            return super().execute(batch)

    service = make_service(backend=Breaks())

    async def test(app: Any) -> None:
        call = Call("/v1/chat/completions", chat(stream=True))
        with anyio.fail_after(30):
            await call.run(app)
        assert call.status == 200
        assert call.whole
        assert "event: error\ndata: " in call.text
        assert events(call.text)[-1]["error"]["type"] == "server_error"
        assert "driver" not in call.text
        assert service.unready
        assert service.alive
        late = Call("/v1/chat/completions", chat())
        await late.run(app)
        assert late.status == 503

    visit(service, test, breaks=True)
