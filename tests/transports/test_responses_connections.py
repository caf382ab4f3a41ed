"""Responses and their connections: in the background, cut, taken up again, given up."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from stepwell.tests.transports.house import PATIENCE_S, Call, idle, make_service, until, visit
from stepwell.tests.transports.responding import URL, begun, create, crowded, framed, house, said
from stepwell.transports.responses.live import Live


def events_of(call: Call) -> list[Any]:
    return framed(call.text[: call.text.rfind("\n\n") + 2])


async def cut(app: Any, call: Call, least: int) -> None:
    """Leave once so many events came."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.run, app)
        with anyio.fail_after(PATIENCE_S):
            while len(events_of(call)) < least:
                await anyio.sleep(0.001)
        call.left.set()


def get(id: str, after: int, headers: dict[str, str] | None = None) -> Call:
    query = f"stream=true&starting_after={after}"
    return Call(f"{URL}/{id}", {}, method="GET", query=query, headers=headers or {})


def test_a_background_response_needs_no_connection() -> None:
    service = house(step_us=1000, lengths={1: 40, 2: 4000})

    async def test(app: Any) -> None:
        started = Call(URL, create("ab", background=True, stream=True))
        await cut(app, started, 6)
        seen = events_of(started)
        id = seen[0]["response"]["id"]
        resumed = get(id, seen[-1]["sequence_number"])
        await resumed.run(app)
        events = seen + events_of(resumed)
        assert [each["sequence_number"] for each in events] == list(range(len(events)))
        assert said(events) == "ab" * 20
        polled = Call(URL, create("cd", background=True))
        await polled.run(app)
        told = json.loads(polled.text)
        assert told["status"] in ("queued", "in_progress")
        ended = Call(f"{URL}/{told['id']}/cancel", {})
        await ended.run(app)
        told = json.loads(ended.text)
        assert told["status"] == "cancelled"
        assert told["usage"]["output_tokens"] < 4000
        assert service.metrics.ends["abort"] == 1

    visit(service, test)


def test_everybody_who_waits_for_the_end_hears_of_it() -> None:
    """A cancel that is sent again while the first one waits for its step."""
    service = house(step_us=100_000, lengths={1: 4000})

    async def test(app: Any) -> None:
        live = await begun(app, service, create("ab", background=True))
        calls = [Call(f"{URL}/{live.id}/cancel", {}) for _ in range(3)]
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for call in calls:
                    tasks.start_soon(call.run, app)
        assert [json.loads(call.text)["status"] for call in calls] == ["cancelled"] * 3

    visit(service, test)


@pytest.mark.parametrize(
    ("fields", "goes_on"), [({"store": True}, True), ({"store": False}, False), ({}, False)], ids=str
)
def test_ws_1_who_drops_a_stream_may_come_back_if_he_said_store(fields: dict[str, Any], goes_on: bool) -> None:
    """Otherwise it is cancelled within a step, as closing the connection is how one cancels."""
    service = house(step_us=1000, lengths={1: 200})

    async def test(app: Any) -> None:
        call = Call(URL, create("ab", stream=True, **fields))
        await cut(app, call, 8)
        if not goes_on:
            await until(lambda: idle(service))
            assert service.metrics.ends["abort"] == 1
            return
        seen = events_of(call)
        resumed = get(seen[0]["response"]["id"], seen[-1]["sequence_number"])
        await resumed.run(app)
        events = seen + events_of(resumed)
        assert said(events) == "ab" * 100
        assert events[-1]["type"] == "response.completed"

    visit(service, test)


def test_who_never_comes_back_is_not_waited_for_any_longer() -> None:
    service = house(step_us=1000, lengths={1: 100_000}, hold_s=0.1)

    async def test(app: Any) -> None:
        call = Call(URL, create("ab", stream=True, store=True))
        await cut(app, call, 8)
        await until(lambda: idle(service))
        id = events_of(call)[0]["response"]["id"]
        told = Call(f"{URL}/{id}", {}, method="GET")
        await told.run(app)
        assert json.loads(told.text)["status"] == "cancelled"

    visit(service, test)


def test_a_gap_is_told() -> None:
    service = house(lengths={1: 3000}, events_kib=2)

    async def test(app: Any) -> None:
        live = await begun(app, service, create("abc", background=True))
        reader = live.read()
        while not live.over:
            list(reader.events())
            await reader.news()
        reader.leave()
        refused = get(live.id, 0)
        await refused.run(app)
        assert refused.status == 410
        error = json.loads(refused.text)["error"]
        assert (error["code"], error["param"]) == ("events_gone", "starting_after")
        last = live.answer.log.end - 1
        resumed = get(live.id, last - 1)
        await resumed.run(app)
        assert events_of(resumed)[0]["response"]["usage"]["output_tokens"] == 3000

    visit(service, test)


def test_hs_3_a_stream_that_waits_is_kept_alive_by_comments() -> None:
    service = make_service(step_us=100_000, lengths={1: 4}, server={"ping_s": 0.02})

    async def test(app: Any) -> None:
        call = Call(URL, create("ab", stream=True))
        await call.run(app)
        assert ": keep-alive\n\n" in call.text
        assert said(framed(call.text)) == "abab"

    visit(service, test)


def test_of_hundreds_that_wait_few_are_told_at_once() -> None:
    """Each in its turn, and none more often than the setting says."""
    from stepwell.transports.responses import house as housekeeping  # lazy: for its bound

    service = crowded("fcfs", dict.fromkeys(range(1, 200), 3000), queue_update_s=0.05)

    async def test(app: Any) -> None:
        lives = [await begun(app, service, create("ab", background=True)) for _ in range(housekeeping.MOST_TOLD + 40)]
        first = lives[1:]
        lives[1].cancel()  # and all behind it move up
        await until(lambda: all(told(each) > 1 or each is lives[1] for each in first))
        for live in lives:
            live.cancel()
        await until(lambda: idle(service))

    def told(live: Live) -> int:
        return sum(
            live.answer.log.at(number).kind == "response.queued"
            for number in range(live.answer.log.first, live.answer.log.end)
        )

    visit(service, test)
