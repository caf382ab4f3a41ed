"""Limits of tenants, deadlines and classes, as clients of the real application meet them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from stepwell.core.errors import CapacityError
from stepwell.core.instructions import Launch
from stepwell.core.protocols import StepResult
from stepwell.sim.backend import EchoBackend
from stepwell.tests.transports.house import (
    Call,
    chat,
    client,
    error_of,
    events,
    flat_cost,
    idle,
    make_service,
    until,
    visit,
)

from stepwell.transports.gateway.caller import on_behalf_of  # isort: skip
from stepwell.transports.gateway.digests import digest_of  # isort: skip
from stepwell.transports.http.requests import ChatRequest  # isort: skip
from stepwell.transports.http.wanting import wants_of  # isort: skip
from stepwell.transports.service import Service  # isort: skip

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def key(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "digest": digest_of(f"sw-{name}".encode()), "tenant": name, **more}


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer sw-{name}"}


def limited(**gateway: Any) -> Service:
    return make_service(keys=[key("acme"), key("bolt")], gateway=gateway)


# ------------------------------------------------------------------------------------------------ limits


def test_each_answer_says_what_is_left_and_a_refusal_which_limit_it_was() -> None:
    service = limited(requests_per_minute=2, tokens_per_minute=10_000, predicted_tokens=50)
    with client(service) as http:
        first = http.post(CHAT, json=chat("hello"), headers=bearer("acme"))
        assert first.status_code == 200
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert first.headers["x-ratelimit-reset-requests"].endswith("s")
        used = first.json()["usage"]["total_tokens"]
        stream = http.post(CHAT, json=chat("hello", stream=True), headers=bearer("acme"))
        assert int(stream.headers["x-ratelimit-remaining-tokens"]) in range(9_900 - used, 10_000)
        assert events(stream.text)
        refused = http.post(CHAT, json=chat("hello"), headers=bearer("acme"))
        assert error_of(refused)[:2] == (429, "rate_limit_exceeded")
        assert "requests_per_minute" in refused.text
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert 0 < int(refused.headers["retry-after-ms"]) <= 30_000
        assert int(refused.headers["Retry-After"]) in range(1, 31)
        assert http.post(CHAT, json=chat("hello"), headers=bearer("bolt")).status_code == 200
        assert http.get("/v1/models", headers=bearer("acme")).headers["x-ratelimit-remaining-requests"] == "0"
    assert service.metrics.transport["rate_limited"] == 1


def test_what_was_reserved_comes_back() -> None:
    """Answers of 5 tokens where 400 are predicted: the whole of the rest is given back at the end."""
    service = limited(tokens_per_minute=1000, predicted_tokens=400, cached_share=1.0)
    with client(service) as http:
        for _ in range(6):
            assert http.post(CHAT, json=chat("hello"), headers=bearer("acme")).status_code == 200
        never = http.post(TEXT, json={"prompt": "x" * 700, "max_tokens": 600}, headers=bearer("acme"))
    assert error_of(never)[:2] == (429, "rate_limit_exceeded")
    assert idle(service)


def test_a_request_that_never_fits_is_not_tried_again() -> None:
    with client(limited(tokens_per_minute=100)) as http:
        never = http.post(TEXT, json={"prompt": "x" * 200, "max_tokens": 5}, headers=bearer("acme"))
        assert error_of(never)[:2] == (429, "rate_limit_exceeded")
        assert never.headers["x-should-retry"] == "false"
        assert "retry-after" not in never.headers


def test_answers_at_once_count_choices() -> None:
    with client(limited(concurrent=2)) as http:
        assert http.post(CHAT, json=chat("hi", n=2), headers=bearer("acme")).status_code == 200
        much = http.post(CHAT, json=chat("hi", n=3), headers=bearer("acme"))
        assert error_of(much)[:2] == (429, "rate_limit_exceeded")
        assert "concurrent" in much.text


def test_a_refusal_of_the_scheduler_costs_nothing() -> None:
    service = make_service(
        keys=[key("acme")],
        gateway={"requests_per_minute": 1},
        scheduler={"max_waiting": 1, "max_context": 20},
    )
    with client(service) as http:
        for _ in range(3):
            refused = http.post(TEXT, json={"prompt": ["x", "y", "z"], "max_tokens": 1}, headers=bearer("acme"))
            assert error_of(refused)[:2] == (429, "queue_full")
        assert http.post(CHAT, json=chat("hi"), headers=bearer("acme")).status_code == 200


def test_lanes_of_a_socket_are_requests_too() -> None:
    """A refusal is an event with its status and headers, and the socket stays open."""
    with (
        client(limited(requests_per_minute=2)) as http,
        http.websocket_connect("/v1/responses", headers=bearer("acme")) as socket,
    ):
        said: list[Any] = []
        for lane in ("a", "b", "c"):
            socket.send_text(json.dumps({"type": "response.create", "input": "hi", "stream_id": lane}))
            while not said or said[-1]["type"] not in ("response.completed", "error"):
                said.append(json.loads(socket.receive_text()))
            last = said.pop()
            said.clear()
            assert last["type"] == ("error" if lane == "c" else "response.completed")
        assert (last["status"], last["error"]["code"]) == (429, "rate_limit_exceeded")
        assert last["stream_id"] == "c"
        assert last["error"]["headers"]["x-ratelimit-remaining-requests"] == "0"
        assert int(last["error"]["headers"]["retry-after-ms"]) > 0


def test_the_server_may_work_for_a_tenant_later() -> None:
    """As lines of a batch: tokens count, requests a minute do not, and no key is asked for."""

    async def lines(app: object) -> None:
        for _ in range(3):
            wants = wants_of(ChatRequest(messages=b"[]", max_tokens=3), service, on_behalf_of("acme"))  # type: ignore[arg-type]
            generation = service.start([[1, 2, 3]], wants)
            await generation.finished()
            generation.close()
        with pytest.raises(CapacityError, match="tokens_per_minute"):
            service.start([[7] * 60], wants)

    service = limited(requests_per_minute=1, tokens_per_minute=70)
    visit(service, lines)


# ------------------------------------------------------------------------------------------------ what a key may


def test_a_key_for_one_class_is_of_that_class_and_told_so() -> None:
    """Who says nothing is of the key's first class; who asks for another is told which there are."""
    seen: list[str] = []

    def watch(now_ns: int, happened: Any, out: Any) -> None:
        seen.extend(each.klass for each in happened if hasattr(each, "klass"))

    service = make_service(keys=[key("acme", classes=("batch",))], observers=[watch])
    with client(service) as http:
        assert http.post(CHAT, json=chat("hi"), headers=bearer("acme")).status_code == 200
        assert seen == ["batch"]
        named = http.post(CHAT, json=chat("hi"), headers=bearer("acme") | {"X-Stepwell-Class": "chat"})
        assert error_of(named) == (403, "class_not_allowed", "X-Stepwell-Class")
        assert "batch" in named.text
    other = make_service(keys=[key("acme", classes=("chat",))])
    with client(other) as http:
        tier = http.post(CHAT, json=chat("hi", service_tier="flex"), headers=bearer("acme"))
        assert error_of(tier) == (403, "class_not_allowed", "service_tier")
        ranged = http.post(CHAT, json=chat("hi", priority=5), headers=bearer("acme"))
        assert error_of(ranged) == (403, "class_not_allowed", "priority")


def test_a_batch_does_nothing_later_that_its_key_may_not_do_now(tmp_path: Path) -> None:
    keys = [key("acme", models=("llama",)), key("bolt", classes=("chat",)), key("corp", classes=("chat", "batch"))]
    with client(make_service(keys=keys, store={"path": str(tmp_path / "store.sqlite")})) as http:
        body = {"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h"}
        told = [error_of(http.post("/v1/batches", json=body, headers=bearer(each["name"])))[:2] for each in keys]
    assert told == [(403, "model_not_allowed"), (403, "class_not_allowed"), (404, "file_not_found")]


def test_a_key_for_other_models_opens_none() -> None:
    with client(make_service(keys=[key("acme", models=("llama",)), key("bolt", models=("echo",))])) as http:
        refused = http.post(CHAT, json=chat("hi"), headers=bearer("acme"))
        assert error_of(refused) == (403, "model_not_allowed", "model")
        assert http.get("/v1/models", headers=bearer("acme")).json()["data"] == []
        assert error_of(http.get("/v1/models/echo", headers=bearer("acme")))[0] == 404
        assert http.post(CHAT, json=chat("hi"), headers=bearer("bolt")).status_code == 200
        assert [each["id"] for each in http.get("/v1/models", headers=bearer("bolt")).json()["data"]] == ["echo"]


@pytest.mark.parametrize(("trusted", "tenant"), [(True, "named"), (False, "acme")])
def test_only_a_gateway_names_tenants(trusted: bool, tenant: str) -> None:
    seen: list[str] = []

    def watch(now_ns: int, happened: Any, out: Any) -> None:
        seen.extend(each.tenant for each in happened if hasattr(each, "tenant"))

    keys = [key("acme", trusted=trusted)]
    service = make_service(keys=keys, wire={"tenant_header": "X-Tenant"}, observers=[watch])
    with client(service) as http:
        asked = http.post(CHAT, json=chat("hi"), headers=bearer("acme") | {"X-Tenant": "named"})
        assert asked.status_code == 200
        assert seen == [tenant]
        odd = http.post(CHAT, json=chat("hi"), headers=bearer("acme") | {"X-Tenant": "no tenant"})
        assert odd.status_code == (400 if trusted else 200)


# ------------------------------------------------------------------------------------------------ deadlines


def test_what_cannot_be_in_time_is_refused_at_once() -> None:
    """Two answers of 300 steps of 20 ms before it, and 10 ms to go: it is refused with the estimate, and the one
    without a deadline waits."""
    classes = [{"name": "chat", "deadline_ms": 10.0}, {"name": "batch", "rank": 1}]
    service = make_service(step_us=20_000, classes=classes, scheduler={"running_limit": 1})

    async def main(app: object) -> None:
        batch = {"X-Stepwell-Class": "batch"}
        wants = wants_of(ChatRequest(messages=b"[]"), service, batch)  # type: ignore[arg-type]
        first = service.start([[1] * 300], wants)
        await first.accepted()
        while not first.choices[0].tokens:
            await first.news()
        hurried = wants_of(ChatRequest(messages=b"[]"), service, {})  # type: ignore[arg-type]
        assert hurried.standing.deadline_ns == 10_000_000
        with pytest.raises(CapacityError, match=r"in about [\d,]+ ms, and 10 ms is the deadline") as refused:
            service.start([[1] * 3], hurried)
        told = service.refusal(refused.value)
        assert (told.status, told.code) == (429, "deadline_unreachable")
        assert int(told.headers["retry-after-ms"]) > 0
        second = service.start([[1] * 3], wants)
        await second.accepted()
        for generation in (first, second):
            generation.close()

    visit(service, main)
    assert service.metrics.transport["deadline_unreachable"] == 1


def test_what_waited_until_its_deadline_is_let_go() -> None:
    """Nobody knows how long it would wait (nothing has ended yet), so it is taken, and told when its time is over."""
    classes = [{"name": "chat", "deadline_ms": 30.0}, {"name": "batch", "rank": 1}]
    service = make_service(step_us=5_000, classes=classes, scheduler={"running_limit": 1})
    service.admission.ttft_ns = lambda prompt_tokens, klass: 0  # type: ignore[method-assign]

    async def main(app: object) -> None:
        wants = wants_of(ChatRequest(messages=b"[]"), service, {"X-Stepwell-Class": "batch"})  # type: ignore[arg-type]
        first = service.start([[1] * 300], wants)
        await first.accepted()
        hurried = wants_of(ChatRequest(messages=b"[]"), service, {})  # type: ignore[arg-type]
        waits = service.start([[1] * 3], hurried)
        with pytest.raises(CapacityError) as late:
            await waits.finished()
        assert late.value.code == "queue_timeout"
        for generation in (first, waits):
            generation.close()

    visit(service, main)


def test_a_gateway_says_the_deadline() -> None:
    wire = {"deadline_header": "X-llm-d-slo-ttft-ms"}
    header = {"x-llm-d-slo-ttft-ms": "250"}
    asked = ChatRequest(messages=b"[]")  # type: ignore[arg-type]
    anyone = make_service(wire=wire).wire
    assert anyone.standing(asked, header).deadline_ns == 250_000_000
    assert anyone.standing(asked, {}).deadline_ns == 0
    with client(make_service(wire=wire)) as http:
        for odd in ("0", "-5", "soon", "1.5", ""):
            answer = http.post(CHAT, json=chat("hi"), headers={"x-llm-d-slo-ttft-ms": odd})
            assert answer.status_code == (400 if odd else 200)
    keyed = make_service(wire=wire, keys=[key("acme"), key("bolt", trusted=True)])
    for name, deadline_ns in (("acme", 0), ("bolt", 250_000_000)):
        caller = {"x-stepwell-caller": f"key {name}"}
        assert keyed.wire.standing(asked, header | caller).deadline_ns == deadline_ns


def test_an_idle_server_meets_any_deadline() -> None:
    classes = [{"name": "chat", "deadline_ms": 1000.0}, {"name": "batch", "rank": 1}]
    with client(make_service(classes=classes)) as http:
        for _ in range(5):
            assert http.post(CHAT, json=chat("hello")).status_code == 200


# ------------------------------------------------------------------------------------------------ leaving, and the end


@pytest.mark.parametrize("stream", [True, False])
def test_ab_1_who_leaves_pays_for_what_was_computed(stream: bool) -> None:
    """AB-1, with keys, limits and metrics on: half leave while they are answered, half while they wait; all places come
    back, and of the tokens all that were not computed."""
    service = make_service(
        step_us=500,
        lengths=dict.fromkeys(range(1, 9), 10_000),
        keys=[key("acme")],
        gateway={"tokens_per_minute": 1_000_000, "predicted_tokens": 10_000, "concurrent": 8, "metrics": "key"},
        scheduler={"running_limit": 4, "token_budget": 64},
    )
    service.admission._now_ns = lambda: 0  # so that nothing comes back by itself

    async def test(app: Any) -> None:
        calls = [Call(CHAT, chat(stream=stream, max_tokens=300), headers=bearer("acme")) for _ in range(8)]
        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(call.run, app)
            await until(lambda: service.metrics.generation_tokens >= 20 and service.admission.limits.open == 8)
            assert (service.metrics.running, service.metrics.waiting) == (4, 4)
            for call in calls:
                call.left.set()
        await until(lambda: idle(service))
        left = int(service.admission.headers("acme")["x-ratelimit-remaining-tokens"])
        paid = 1_000_000 - left
        assert 0 < paid <= service.metrics.generation_tokens + 4 * len("hello")

    visit(service, test)


class Dies(EchoBackend):
    """At the step that it is told."""

    dies = False

    def execute(self, batch: Launch) -> StepResult:
        if self.dies:
            raise RuntimeError("the driver is gone")
        return super().execute(batch)


def test_everybody_is_told_why_when_the_engine_dies() -> None:
    """A stream, an answer in one piece and one in line; then whoever comes gets 503, and so do probes."""
    backend = Dies(cost=flat_cost(1_000_000), lengths=dict.fromkeys(range(1, 9), 10_000))
    service = make_service(backend=backend, scheduler={"running_limit": 2}, gateway={"concurrent": 9})

    async def test(app: Any) -> None:
        calls = [Call(CHAT, chat("long", stream=stream, max_tokens=300)) for stream in (True, False, True, False)]
        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(call.run, app)
            await until(lambda: service.metrics.generation_tokens > 4 and service.metrics.waiting == 2)
            backend.dies = True
        for call in calls:
            assert call.whole
            assert "internal_error" in call.text
            assert call.status in ((200, 500) if call.body["stream"] else (500,))
        late = Call(CHAT, chat("late"))
        await late.run(app)
        assert (late.status, json.loads(late.text)["error"]["code"]) == (503, "not_ready")
        assert service.unready
        assert service.alive
        assert service.admission.limits.open == 0

    visit(service, test, breaks=True)


def test_nothing_new_is_taken_while_no_step_ends() -> None:
    """HC-1: with work and no finished step for ``stall_s`` there is no capacity: 503 and not 429."""
    service = make_service(server={"stall_s": 0.1})
    service.metrics.stalled_ns = lambda now_ns: 200_000_000  # type: ignore[method-assign]
    with client(service) as http:
        refused = http.post(CHAT, json=chat("hi"))
        assert error_of(refused)[:2] == (503, "not_ready")
        assert refused.headers["connection"] == "close"
        assert int(refused.headers["retry-after"]) >= 1
        assert http.get("/health").status_code == 200
