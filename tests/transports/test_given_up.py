"""Streams that are given up, or never were one: who is told what, and who is not dropped for others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from stepwell.tests.transports.house import Call, until, visit
from stepwell.tests.transports.responding import URL, begun, create, framed, house
from stepwell.transports.http import responses_stream
from stepwell.transports.responses.live import Reader


def test_hs_1_of_two_readers_both_are_bounded_and_the_one_that_left_is_not() -> None:
    """What is unread is unread by all: whoever is there when it is too much goes, and nobody else."""
    service = house(step_us=500, lengths={1: 5000})

    async def test(app: Any) -> None:
        live = await begun(app, service, create("abc", background=True))
        dropped: list[str] = []
        readers: dict[str, Reader] = {}
        for name in ("first", "second", "gone"):
            readers[name] = live.read()
            readers[name].dropped_by(lambda name=name: dropped.append(name), 100)  # type: ignore[misc]
        readers["gone"].leave()
        for _ in range(200):  # one that reads is enough
            list(readers["second"].events())
            await anyio.sleep(0.001)
        assert dropped == []
        await until(lambda: bool(dropped))
        assert sorted(dropped) == ["first", "second"]
        readers["first"].leave()
        readers["second"].leave()
        later = live.read()
        later.dropped_by(lambda: dropped.append("later"), 100)
        await until(lambda: "later" in dropped)
        later.leave()
        live.cancel()
        await live.finished()

    visit(service, test)


class Free:
    """A transport that takes everything at once."""

    free = True

    def __init__(self, call: Call) -> None:
        self._call = call

    def write(self, parts: Sequence[bytes]) -> None:
        self._call.parts += parts


def test_who_is_told_straight_is_told_that_events_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds are far apart, and somebody else reads so much meanwhile that the first events are dropped."""
    service = house(lengths={1: 20_000}, events_kib=2)
    call = Call("", {}, method="GET", query="stream=true")
    monkeypatch.setattr(responses_stream, "writer_of", lambda send: Free(call))

    async def test(app: Any) -> None:
        live = await begun(app, service, create("abc", background=True))
        call.path = f"{URL}/{live.id}"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call.run, app)
            await until(lambda: len(call.parts) > 3)
            service.outlet.gap_s = 0.25
            reader = live.read()
            while not live.over and not call.whole:
                list(reader.events())
                await reader.news()
            reader.leave()
        assert call.whole
        (said,) = [each for each in framed(call.text) if each["type"] == "error"]
        assert said["error"]["code"] == "events_gone"

    visit(service, test)


def test_head_of_a_response_that_goes_on_reads_nothing() -> None:
    service = house(step_us=500, lengths={1: 5000})

    async def test(app: Any) -> None:
        live = await begun(app, service, create("abc", background=True))
        call = Call(f"{URL}/{live.id}", {}, method="HEAD", query="stream=true")
        await call.run(app)
        assert (call.status, call.text, call.whole) == (200, "", True)
        assert not live.over
        live.cancel()
        await live.finished()

    visit(service, test)
