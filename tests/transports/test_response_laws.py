"""Laws of responses: whoever reads, and wherever the connection was cut, the events are those of one uncut reading.

No event is lost or doubled, each response ends once, and of those that are over nothing stays but what may be kept.
"""

from __future__ import annotations

import gc
import json
import sys
import weakref
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.tests.transports.house import PATIENCE_S, idle, running, until
from stepwell.tests.transports.responding import begun, create, house, responses_in, said, text_of
from stepwell.transports.errors import RequestError
from stepwell.transports.responses.answer import ENDS, Answer
from stepwell.transports.responses.live import Live
from stepwell.transports.responses.log import COST, Entry, EventLog
from stepwell.transports.responses.shelf import size_of

Read = list[tuple[str, bytes]]


async def read_all(live: Live, pace: list[int], after: int = -1) -> Read:
    """All events, by readers that leave after so many events each; ``pace`` is gone through again and again."""
    found: Read = []
    turn = 0
    while not live.over or after + 1 < live.answer.log.end:
        reader, left = live.read(after), pace[turn % len(pace)]
        turn += 1
        while left and not reader.over:
            for event in reader.events():
                found.append(event)
                after += 1
                left -= 1
                if not left:
                    break
            else:
                if not reader.over:
                    await reader.news()
        reader.leave()
    return found


def check_whole(events: Read, text: str) -> None:
    """Numbers without a gap, one end and it is the last, and all of the text."""
    told = [json.loads(data) for _, data in events]
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    assert [each["type"] for each in told] == [kind for kind, _ in events]
    assert [each["type"] in ENDS for each in told] == [False] * (len(told) - 1) + [True]
    assert said(told) == text
    assert text_of(told[-1]["response"]) == text


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(1, 80),
    readers=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=4),
    cancel_at=st.none() | st.integers(0, 60),
)
def test_however_it_is_cut_the_parts_are_the_whole(
    length: int, readers: list[list[int]], cancel_at: int | None
) -> None:
    service = house(step_us=100, lengths={1: length})
    found: list[Read] = []

    async def main() -> Live:
        async with running(service) as app:
            live: Live = await begun(app, service, create("abc", background=True))

            async def follow(pace: list[int]) -> None:
                found.append(await read_all(live, pace))

            async with anyio.create_task_group() as tasks:
                for pace in readers:
                    tasks.start_soon(follow, pace)
                if cancel_at is not None:
                    reader = live.read()
                    while not live.over and live.answer.log.end <= cancel_at:
                        await reader.news()
                        live.pull()
                    live.cancel()
                    reader.leave()
            late = [await read_all(live, [1000], after) for after in range(-1, live.answer.log.end - 1)]
            for after, rest in enumerate(late, -1):
                assert rest == found[0][after + 1 :]
            await until(lambda: idle(service))
            return live

    live = anyio.run(main)
    assert all(each == found[0] for each in found)
    check_whole(found[0], text_of(live.answer.response()))
    if cancel_at is None:
        assert text_of(live.answer.response()) == ("abc" * 40)[:length]


@given(
    most=st.integers(COST, 40 * COST),
    texts=st.lists(st.text(max_size=300), min_size=1, max_size=40),
)
def test_a_log_keeps_the_last_ones_within_its_bytes(most: int, texts: list[str]) -> None:
    log = EventLog(most)
    for text in texts:
        log.add(Entry("delta", 0, text))
        assert log.size <= most or log.end - log.first == 1
    assert log.end == len(texts)
    assert [log.at(number).data for number in range(log.first, log.end)] == texts[log.first :]


@given(text=st.text(), number=st.integers(0, 10**9), lane=st.none() | st.text())
def test_a_piece_of_text_is_written_as_any_other_event(text: str, number: int, lane: str | None) -> None:
    text = text.encode("utf-8", "replace").decode()
    lane = lane and lane.encode("utf-8", "replace").decode()
    answer = Answer("echo", {}, 1 << 20)
    answer.open("message")
    answer.log.first = number
    answer.say(text)
    number += 2
    event = answer.event(number) | ({} if lane is None else {"stream_id": lane})
    for _ in range(2):  # the second time what stands around it is known
        assert json.loads(answer.encoded(number, lane)[1]) == event


@settings(max_examples=5, deadline=None)
@given(
    keep=st.integers(0, 6),
    does=st.lists(st.sampled_from(["end", "cancel", "leave", "delete", "unstored"]), min_size=1, max_size=24),
)
def test_of_many_responses_as_many_stay_as_may_be_kept(keep: int, does: list[str]) -> None:
    service = house(step_us=50, lengths=dict.fromkeys(range(1, 25), 6), keep=keep)
    made: list[weakref.ref[Live]] = []

    async def one(app: Any, what: str) -> bool:
        """Whether it may be kept."""
        live: Live = await begun(app, service, create("ab", store=what != "unstored", stream=True))
        made.append(weakref.ref(live))
        reader = live.read()
        if what == "cancel":
            live.cancel()
        if what == "delete":
            await responses_in(app).delete(live)
        if what == "leave":
            reader.leave()
        with anyio.fail_after(PATIENCE_S):
            await live.finished()
        reader.leave()
        return what not in ("unstored", "delete")

    async def main() -> None:
        async with running(service) as app:
            kept = sum([await one(app, what) for what in does])
            shelf = responses_in(app).shelf
            await until(lambda: idle(service))
            assert shelf.count == min(keep, kept)
            gc.collect()
            assert sum(each() is not None for each in made) == shelf.count
            for ref in made:
                live = ref()
                if live is not None:
                    await responses_in(app).delete(live)
                del live
            gc.collect()
            assert (shelf.count, shelf.size, shelf._tenants) == (0, 0, {})
            assert not any(each() for each in made)

    anyio.run(main)


def test_log_probabilities_count_as_what_they_take() -> None:
    answer = Answer("echo", {}, 1 << 10)
    answer.open("message")
    best = [{"token": "a", "logprob": -1.0, "bytes": [97]} for _ in range(20)]
    for _ in range(100):
        answer.say("a", [{**best[0], "top_logprobs": best}])
    live = SimpleNamespace(answer=answer, input=b"", told_size=2)
    assert size_of(cast(Live, live)) > 100 * 21 * sys.getsizeof(best[0])


def test_what_is_too_old_goes() -> None:
    service = house(keep_hours=0.05 / 3600)

    async def main() -> None:
        async with running(service) as app:
            live: Live = await begun(app, service, create("ab", background=True))
            await live.finished()
            shelf = responses_in(app).shelf
            assert shelf.count == 1
            await until(lambda: shelf.find(live.tenant, live.id) is None)
            assert (shelf.count, shelf.size, shelf._tenants) == (0, 0, {})

    anyio.run(main)


def test_a_slow_reader_of_a_bounded_log_is_told_what_it_missed() -> None:
    service = house(lengths={1: 2000}, events_kib=2)

    async def main() -> None:
        async with running(service) as app:
            live: Live = await begun(app, service, create("ab", background=True))
            slow, fast = live.read(), live.read()
            while not fast.over:
                list(fast.events())
                if not fast.over:
                    await fast.news()
            with pytest.raises(RequestError) as caught:
                list(slow.events())
            assert (caught.value.status, caught.value.code) == (410, "events_gone")
            slow.leave()
            fast.leave()

    anyio.run(main)
