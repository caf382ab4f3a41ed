"""Clients that leave, and clients that do not read: what they had is given back at once, and nothing is left over."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from stepwell.core.events import Cancel, Event
from stepwell.core.instructions import Instruction, Launch
from stepwell.tests.transports.house import Call, chat, client, events, idle, make_service, until, visit
from stepwell.transports.echo import last_message
from stepwell.transports.service import THREADS, Service

CHAT = "/v1/chat/completions"
MANY = 12


async def crowd(app: Any, calls: Sequence[Call], leave: Any) -> None:
    """All calls at once; ``leave`` waits for the moment, then everybody goes."""
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(call.run, app)
        await leave()
        for call in calls:
            call.left.set()


def busy(service: Service) -> int:
    return service.metrics.generation_tokens


@pytest.mark.parametrize("stream", [True, False])
def test_ab_1_leaving_in_the_middle(stream: bool) -> None:
    service = make_service(step_us=5_000, lengths=dict.fromkeys(range(1, MANY + 1), 10_000))

    async def test(app: Any) -> None:
        calls = [Call(CHAT, chat(stream=stream, max_tokens=60)) for _ in range(MANY)]

        async def leave() -> None:
            await until(lambda: busy(service) >= 5 * MANY)

        await crowd(app, calls, leave)
        await until(lambda: idle(service))
        assert service.metrics.ends["abort"] == MANY
        assert service.metrics.ends["length"] == 0
        assert service.metrics.transport["disconnected"] == MANY

    visit(service, test)


@pytest.mark.parametrize("stream", [True, False])
def test_ab_1_leaving_while_waiting(stream: bool) -> None:
    service = make_service(
        step_us=500, lengths={1: 10_000}, scheduler={"running_limit": 1, "token_budget": 8}, memory={"pages": 2000}
    )

    async def test(app: Any) -> None:
        first = Call(CHAT, chat(stream=True))
        calls = [Call(CHAT, chat(stream=stream)) for _ in range(MANY)]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.run, app)
            await until(lambda: service.metrics.running == 1)

            async def leave() -> None:
                await until(lambda: service.metrics.waiting == MANY)

            await crowd(app, calls, leave)
            await until(lambda: service.metrics.waiting == 0)
            assert service.metrics.running == 1
            first.left.set()
        await until(lambda: idle(service))
        assert service.metrics.ends["abort"] == MANY + 1

    visit(service, test)


def test_ab_1_leaving_while_the_prompt_is_tokenised() -> None:
    """Who leaves frees no thread that still works, so that many who leave take no more threads than a few who stay."""
    gate = threading.Event()
    lock = threading.Lock()
    working: set[int] = set()
    most, begun = 0, 0

    def slow(messages: Any, arguments: Any) -> list[int]:
        nonlocal most, begun
        with lock:
            working.add(threading.get_ident())
            most, begun = max(most, len(working)), begun + 1
        gate.wait(30)
        with lock:
            working.remove(threading.get_ident())
        return last_message(messages, arguments)

    service = make_service(template=slow)

    async def test(app: Any) -> None:
        for _ in range(10):
            calls = [Call(CHAT, chat(stream=True)) for _ in range(THREADS)]

            async def leave() -> None:
                await until(lambda: begun >= THREADS)
                for _ in range(20):
                    await anyio.sleep(0.001)

            await crowd(app, calls, leave)
            assert [call.status for call in calls] == [499] * THREADS
        assert (most, begun, len(working)) == (THREADS, THREADS, THREADS)
        gate.set()
        last = Call(CHAT, chat("and now", stream=True))
        await last.run(app)
        assert last.whole
        assert (most, begun, service.metrics.accepted) == (THREADS, THREADS + 1, 1)

    visit(service, test)


def test_ab_1_leaving_with_the_last_chunk_counts_as_answered() -> None:
    service = make_service()

    async def test(app: Any) -> None:
        call = Call(CHAT, chat(stream=True))
        send = call.send

        async def leaving(message: Any) -> None:
            await send(message)
            if b"[DONE]" in message.get("body", b""):
                call.left.set()
                await anyio.sleep(0.01)

        call.send = leaving  # type: ignore[method-assign]
        await call.run(app)
        assert call.whole
        assert service.metrics.ends["stop"] == 1
        assert "disconnected" not in service.metrics.transport

    visit(service, test)


def test_ab_1_pages_are_back_within_one_step() -> None:
    """From the cancel on, not one step names the request again."""
    service = make_service(step_us=500, lengths={1: 10_000})
    seen: list[tuple[Sequence[Event], Sequence[Instruction]]] = []
    service.engine._observers = [*service.engine._observers, lambda now_ns, events, out: seen.append((events, out))]

    async def test(app: Any) -> None:
        call = Call(CHAT, chat(stream=True, max_tokens=1000))

        async def leave() -> None:
            await until(lambda: busy(service) >= 5)

        await crowd(app, [call], leave)
        await until(lambda: idle(service))
        (at,) = [place for place, (events, _) in enumerate(seen) if any(isinstance(each, Cancel) for each in events)]
        later = [each for _, out in seen[at:] for each in out if isinstance(each, Launch)]
        assert [each for each in later if each.decode or each.slices] == []

    visit(service, test)


def test_hs_1_who_takes_nothing_is_dropped_and_counted() -> None:
    """One that never reads, among others that do; its stream ends, and the others' are whole."""
    service = make_service(lengths=dict.fromkeys(range(1, 8), 300), server={"send_timeout_s": 0.2})

    async def test(app: Any) -> None:
        deaf = Call(CHAT, chat(stream=True), deaf=True)
        calls = [Call(CHAT, chat(stream=True)) for _ in range(5)]
        async with anyio.create_task_group() as tasks:
            for call in [deaf, *calls]:
                tasks.start_soon(call.run, app)
        assert not deaf.whole
        assert service.metrics.transport == {"slow_client": 1}
        for call in calls:
            assert events(call.text)[-1]["choices"][0]["finish_reason"] == "stop"

    visit(service, test)


def test_hs_1_what_waits_for_a_slow_client_is_bounded() -> None:
    service = make_service(lengths={1: 5000}, server={"buffer_kib": 1}, memory={"pages": 4000})

    async def test(app: Any) -> None:
        deaf = Call(CHAT, chat(stream=True), deaf=True)
        await deaf.run(app)
        await until(lambda: idle(service))
        assert service.metrics.transport == {"slow_client": 1}
        assert service.metrics.ends["abort"] == 1
        assert service.metrics.generation_tokens < 2500

    visit(service, test)


def test_hs_1_a_slow_reader_gets_everything_in_larger_pieces() -> None:
    service = make_service(lengths={1: 2000}, memory={"pages": 1000})

    async def test(app: Any) -> None:
        call = Call(CHAT, chat("abcdefghij", stream=True))
        send = call.send

        async def slowly(message: Any) -> None:
            await send(message)
            await anyio.sleep(0.02)

        call.send = slowly  # type: ignore[method-assign]
        await call.run(app)
        chunks = events(call.text)
        text = "".join(each["choices"][0]["delta"].get("content", "") for each in chunks)
        assert text == "abcdefghij" * 200
        assert len(chunks) < 1000

    visit(service, test)


def test_hc_1_alive_is_not_ready() -> None:
    """A step that does not finish: not ready within the limit, alive all the same, and ready again after it."""
    service = make_service(step_us=400_000, server={"stall_s": 0.1})

    async def ask(app: Any, path: str) -> int:
        call = Call(path, {})
        scope_of = call.run

        async def get(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "method": "GET"}, receive, send)

        await scope_of(get)
        return call.status

    async def test(app: Any) -> None:
        assert await ask(app, "/ready") == 200
        call = Call(CHAT, chat("a"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call.run, app)
            await until(lambda: bool(service.unready))
            assert "no step has finished" in service.unready
            assert [await ask(app, path) for path in ("/ready", "/readyz")] == [503, 503]
            assert [await ask(app, path) for path in ("/health", "/livez", "/ping")] == [200] * 3
        assert call.status == 200
        assert await ask(app, "/ready") == 200

    visit(service, test)


def test_draining_is_not_ready_and_lets_the_running_end() -> None:
    service = make_service(step_us=2000, lengths={1: 40})

    async def test(app: Any) -> None:
        call = Call(CHAT, chat(stream=True))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call.run, app)
            await until(lambda: service.metrics.running == 1)
            service.drain()
            assert service.unready == "draining"
            with anyio.fail_after(30):
                await service.drained()
        assert events(call.text)[-1]["choices"][0]["finish_reason"] == "stop"

    visit(service, test)


def test_gauges_are_exported() -> None:
    with client(make_service()) as http:
        http.post(CHAT, json=chat())
        text = http.get("/metrics").text
    for line in (
        'vllm:num_requests_running{engine="0",model_name="echo"} 0.0',
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="echo"} 1.0',
        'vllm:time_to_first_token_seconds_count{engine="0",model_name="echo"} 1.0',
        'vllm:cache_config_info{block_size="4",engine="0",model_name="echo",num_gpu_blocks="400"} 1.0',
    ):
        assert line in text
