"""HC-3: one huge prompt and ten large ones take nothing from anybody.  How long things take is in benchmarks/hc3.py."""

from __future__ import annotations

import asyncio

import pytest

from stepwell.tests.e2e.crowd import Probe, chat, post, streams
from stepwell.tests.e2e.serving import serving

HUGE = chat("x" * 27_000_000)
LARGE = chat("y" * 1_000_000, max_tokens=20)
SAID = [f"{index:04}" * 100 for index in range(25)]
SOCKETS = 5


@pytest.mark.slow
@pytest.mark.parametrize("fits", [True, False], ids=["large-prompts-fit", "large-prompts-are-too-long"])
def test_hc_3_huge_prompts_beside_streams(fits: bool) -> None:
    room = ("--set", "memory.pages=700000", "--set", "scheduler.token_budget=65536") if fits else ()
    with serving(*room, step_us=5000) as server, Probe(server.port, 0.02).probing() as probe:

        async def crowd() -> None:
            running = asyncio.create_task(streams(server.port, SAID, SOCKETS))
            await asyncio.to_thread(server.until, lambda: server.metric("stepwell:streams_open") == len(SAID))
            posts = (asyncio.to_thread(post, server.port, body) for body in (HUGE, *[LARGE] * 10))
            (refused, why), *answers = await asyncio.gather(*posts)
            assert (refused, why["error"]["code"]) == (413, "request_too_large")
            for status, answer in answers:
                if fits:
                    assert (status, answer["choices"][0]["message"]["content"]) == (200, "y" * 20)
                    assert answer["usage"]["prompt_tokens"] == 1_000_000
                else:
                    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
            heard = await running
            assert [each.text for each in heard] == SAID
            assert [each.ended for each in heard] == ["stop"] * 20 + ["response.completed"] * SOCKETS

        asyncio.run(crowd())
        server.until(lambda: server.idle)
        assert set(probe.statuses) == {200}
        assert len(probe.statuses) > 10
        assert "stepwell:loop_lag_seconds{" in server.get("/metrics")
        assert server.metric("stepwell:requests_accepted_total") == len(SAID) + (10 if fits else 0)
        assert server.metric("stepwell:steps_failed_total") == 0
