"""What a batch's file is made of, and how many of its lines may be in flight: laws, without a server."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="needs the extra `serve`")

from stepwell.core.types import NS_PER_S
from stepwell.transports.batches.allowance import CALM_NS, Allowance
from stepwell.transports.batches.lines import MOST_ERRORS, Checker, Cutter, Line
from stepwell.transports.store.files import key_of, line_of

URL = "/v1/chat/completions"


# ------------------------------------------------------------------------------------------------ cutting


@given(
    st.lists(st.text("ab \t\r\ufeff", max_size=12).map(str.encode), max_size=20),
    st.lists(st.integers(1, 9), min_size=1, max_size=20),
    st.booleans(),
)
def test_lines_are_the_same_however_the_file_is_cut(lines: list[bytes], sizes: list[int], last: bool) -> None:
    """The naive reference looks at the whole file at once."""
    most = 8
    whole = b"\n".join(lines) + (b"\n" if last and lines else b"")
    naive: list[Line] = []
    for number, data in enumerate(whole.split(b"\n"), 1):
        short = len(data) <= most
        data = (data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data).strip(b" \t\r")
        if data or not short:
            naive.append(Line(len(naive), number, data if short else None))
    cutter, found, place, turn = Cutter(most), [], 0, 0
    while place < len(whole):
        size = sizes[turn % len(sizes)]
        found += cutter.cut(whole[place : place + size])
        place, turn = place + size, turn + 1
    assert [*found, *cutter.end()] == naive


def test_a_line_without_an_end_is_not_held() -> None:
    cutter = Cutter(1000)
    for _ in range(100):
        assert cutter.cut(b"x" * 400) == []
        assert len(cutter._rest) <= 1000
    assert cutter.cut(b"x\nshort\n") == [Line(0, 1, None), Line(1, 2, b"short")]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert Cutter(100).cut(b"\xef\xbb\xbf{}\r\n") == [Line(0, 1, b"{}")]


@given(st.integers(1, 1 << 40), st.integers(0, (1 << 20) - 1))
def test_keys_of_results_lie_in_the_order_of_their_lines(batch: int, line: int) -> None:
    assert line_of(key_of(batch, line)) == line
    assert key_of(batch, 0) <= key_of(batch, line) < key_of(batch + 1, 0) < 1 << 63


# ------------------------------------------------------------------------------------------------ checking


def line(place: int, **fields: Any) -> Line:
    whole = {"custom_id": f"c{place}", "method": "POST", "url": URL, "body": {}, **fields}
    said = {key: value for key, value in whole.items() if value is not ...}
    return Line(place, place + 1, json.dumps(said).encode())


def errors(*lines: Line, most: int = 1000) -> list[tuple[str, int | None, str | None]]:
    checker = Checker(URL, most)
    checker.look(list(lines))
    return [(each["code"], each["line"], each["param"]) for each in checker.end()]


def test_what_is_wrong_is_told_with_its_line() -> None:
    assert errors(line(0), line(1)) == []
    assert errors() == [("empty_file", None, None)]
    assert errors(
        line(0),
        Line(1, 2, b"{nonsense"),
        line(2, custom_id=...),
        line(3, custom_id=7),
        line(4, custom_id=""),
        line(5, method="GET"),
        line(6, url="/v1/completions"),
        line(7, body=[1]),
        line(8, body=...),
        line(9, custom_id="c0"),
        line(10, custom_id="\ud800"),
        Line(11, 12, None),
        Line(12, 13, b'{"a":' * 2000),
        Line(13, 14, b'"text"'),
        Line(14, 15, b"\xff\xfe"),
        line(15, custom_id="x" * 513),
    ) == [
        ("invalid_json_line", 2, None),
        ("invalid_value", 3, "custom_id"),
        ("invalid_value", 4, "custom_id"),
        ("invalid_value", 5, "custom_id"),
        ("invalid_method", 6, "method"),
        ("mismatched_url", 7, "url"),
        ("invalid_value", 8, "body"),
        ("invalid_value", 9, "body"),
        ("duplicate_custom_id", 10, "custom_id"),
        ("invalid_json_line", 11, None),
        ("line_too_long", 12, None),
        ("invalid_json_line", 13, None),
        ("invalid_value", 14, None),
        ("invalid_json_line", 15, None),
        ("invalid_value", 16, "custom_id"),
    ]


def test_errors_and_lines_are_bounded() -> None:
    checker = Checker(URL, 1000)
    for start in range(0, 1000, 10):
        checker.look([line(start + each, url="x" * 100_000) for each in range(10)])
    told = checker.end()
    assert len(told) == MOST_ERRORS
    assert checker.done
    assert len(json.dumps(told)) < 100_000
    assert errors(*[line(place) for place in range(6)], most=5) == [("too_many_lines", 6, None)]
    assert errors(*[line(place) for place in range(5)], most=5) == []


# ------------------------------------------------------------------------------------------------ in flight


@given(st.integers(1, 8), st.lists(st.sampled_from(["take", "give", "leave", "refused", "answered", "later"])))
def test_places_are_given_in_order_and_never_too_many(most: int, acts: list[str]) -> None:
    async def main() -> None:
        allowance, now_ns = Allowance(most), 0
        served: list[int] = []
        waiting: deque[tuple[int, anyio.CancelScope]] = deque()
        holders = 0

        async def one(number: int, scope: anyio.CancelScope) -> None:
            with scope:
                await allowance.take()
                served.append(number)

        async with anyio.create_task_group() as tasks:
            for number, act in enumerate(acts):
                allowed_before = allowance.allowed
                if act == "take":
                    scope = anyio.CancelScope()
                    waiting.append((number, scope))
                    tasks.start_soon(one, number, scope)
                elif act == "give" and holders:
                    allowance.give_back()
                elif act == "leave" and waiting:
                    waiting.pop()[1].cancel()
                elif act == "refused":
                    allowance.refused(now_ns)
                    assert allowance.allowed >= 1
                elif act == "answered":
                    allowance.answered()
                    assert allowed_before <= allowance.allowed <= most
                elif act == "later":
                    now_ns += CALM_NS
                await anyio.wait_all_tasks_blocked()
                for known in list(waiting):
                    if known[0] in served:
                        waiting.remove(known)
                holders = allowance.held
                assert holders <= most
                assert not waiting or holders >= int(allowance.allowed), "somebody waits beside a free place"
            for _, scope in waiting:
                scope.cancel()
        assert served == sorted(served)

    anyio.run(main)


def test_it_halves_once_a_second_and_grows_by_one_a_round() -> None:
    allowance = Allowance(64)
    for each in range(10):
        allowance.refused(each * NS_PER_S // 100)
    assert allowance.allowed == 32
    allowance.refused(2 * NS_PER_S)
    assert allowance.allowed == 16
    for _ in range(16):
        allowance.answered()
    assert 16.9 < allowance.allowed < 17.1
    for _ in range(5000):
        allowance.answered()
    assert allowance.allowed == 64
