"""Paged memory, worked by hand.  The free pages are a stack whose end is handed out first: [.., 6, 7] gives 7 last."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.core.errors import InvariantError, UserError
from stepwell.core.protocols import NotNow, Reservation
from stepwell.core.types import Fit
from stepwell.memory.paged import Paged


def pool(pages: int = 8, page_size: int = 16, host_pages: int = 8) -> Paged:
    return Paged(Paged.Options(), pages=pages, page_size=page_size, host_pages=host_pages)


def reserved(answer: Reservation | NotNow) -> Reservation:
    assert isinstance(answer, Reservation)
    return answer


def test_a_table_holds_whole_pages_and_the_last_freed_are_handed_out_first() -> None:
    kv = pool()
    assert kv.reserve(1, 33, 100) == Reservation([5, 6, 7], 48)
    assert kv.reserve(2, 16, 100) == Reservation([4], 16)
    kv.free(1)
    assert kv.reserve(3, 17, 100) == Reservation([6, 7], 32)
    assert kv.free_pages == 5
    kv.check()


@pytest.mark.parametrize(("tokens", "pages"), [(1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3), (128, 8)])
def test_pages_at_the_edges(tokens: int, pages: int) -> None:
    kv = pool()
    assert kv.pages_needed(tokens, 9999) == pages
    assert len(reserved(kv.reserve(1, tokens, 9999)).pages) == pages


def test_reserving_more_appends_only_what_is_missing() -> None:
    kv = pool()
    kv.reserve(1, 20, 100)
    assert kv.reserve(1, 32, 100) == Reservation([], 32)
    assert kv.reserve(1, 33, 100) == Reservation([5], 48)
    assert kv.table(1) == [6, 7, 5]
    kv.free(1)
    assert kv.usage().used == 0


def test_a_reservation_is_not_the_table_itself() -> None:
    kv = pool()
    pages = reserved(kv.reserve(1, 16, 100)).pages
    kv.grow([1])
    assert (pages, kv.table(1)) == ([7], [7, 6])


def test_no_room_now_and_no_room_ever_are_different_answers() -> None:
    kv = pool(pages=20)
    assert kv.fits(400, 400) is Fit.NEVER
    assert kv.fits(300, 400) is Fit.FITS
    kv.reserve(1, 30, 30)
    assert kv.fits(300, 400) is Fit.NOT_NOW
    assert kv.reserve(2, 300, 400) == NotNow(1)
    assert kv.pages_missing(300, 400) == 1
    assert kv.pages_missing(300, 400, headroom=3) == 4
    assert kv.pages_missing(300, 400, headroom=-1) == 0
    assert kv.table(2) == ()


def test_growth_is_all_or_nothing() -> None:
    kv = pool(pages=6)
    for request in (1, 2, 3, 4):
        kv.reserve(request, 16, 100)
    assert kv.grow([1, 2, 3]) == NotNow(1)
    assert kv.grow([]) == []
    assert kv.grow([3, 1]) == [1, 0]
    assert (kv.table(3), kv.table(1), kv.free_pages) == ([3, 1], [5, 0], 0)


def test_growing_in_one_call_or_in_several_hands_out_the_same_pages() -> None:
    one, several = pool(), pool()
    for kv in (one, several):
        kv.reserve(1, 16, 100)
        kv.reserve(2, 16, 100)
    one.grow([1, 2])
    several.grow([1])
    several.grow([2])
    assert one.dump() == several.dump()


def test_growth_that_names_a_stranger_changes_nothing() -> None:
    kv = pool()
    kv.reserve(1, 16, 100)
    before = kv.dump()
    with pytest.raises(InvariantError, match="request 9"):
        kv.grow([1, 9])
    assert kv.dump() == before


def test_pages_wait_for_the_last_step_that_names_them() -> None:
    kv = pool()
    kv.reserve(1, 32, 100)
    kv.reserve(2, 48, 100)
    kv.step_done(4)
    kv.free(1, after=6)
    kv.free(2, after=5)
    assert (kv.free_pages, kv.returning_pages) == (3, 5)
    assert kv.reserve(3, 64, 100) == NotNow(1)
    kv.step_done(5)
    assert (kv.free_pages, kv.returning_pages) == (6, 2)
    kv.step_done(6)
    assert kv.reserve(3, 128, 128) == Reservation([0, 1, 2, 3, 4, 5, 6, 7], 128)


def test_what_waits_for_several_steps_returns_in_their_order() -> None:
    kv = pool(pages=4)
    for request in (1, 2, 3):
        kv.reserve(request, 16, 16)
    kv.free(1, after=9)
    kv.free(2, after=7)
    kv.free(3, after=8)
    kv.step_done(9)
    assert kv.reserve(4, 64, 64) == Reservation([0, 2, 1, 3], 64)


def test_a_step_already_done_holds_nothing_back_and_steps_do_not_run_backwards() -> None:
    kv = pool()
    kv.reserve(1, 16, 16)
    kv.step_done(3)
    kv.free(1, after=3)
    assert (kv.free_pages, kv.returning_pages) == (8, 0)
    with pytest.raises(InvariantError, match="step 2"):
        kv.step_done(2)


def test_shrinking_gives_back_whole_pages() -> None:
    kv = pool()
    kv.reserve(1, 64, 100)
    kv.shrink(1, 49)
    assert kv.table(1) == [4, 5, 6, 7]
    kv.shrink(1, 17, after=2)
    assert (kv.table(1), kv.returning_pages) == ([4, 5], 2)
    kv.shrink(1, 0)
    assert (kv.table(1), kv.free_pages) == ([], 6)
    kv.step_done(2)
    assert reserved(kv.reserve(1, 1, 100)).capacity == 16


def test_fork_shares_full_pages_and_copies_a_partly_filled_last_one() -> None:
    """40 tokens are two full pages and 8 tokens of a third: page 7 is to be copied to the child's page 4."""
    kv = pool()
    kv.reserve(1, 40, 100)
    assert kv.fork(1, 2, 40, 40, 100) == Reservation([5, 6, 4], 48, cached=40, shared=2, copies=[(7, 4)])
    assert (kv.table(1), kv.table(2)) == ([5, 6, 7], [5, 6, 4])
    assert (kv.exclusive_pages(1), kv.exclusive_pages(2)) == (1, 1)
    assert kv.usage().used == 4
    kv.free(1)
    assert (kv.exclusive_pages(2), kv.free_pages) == (3, 5)
    kv.free(2)
    assert kv.free_pages == 8
    kv.check()


def test_fork_at_a_page_boundary_copies_nothing_even_when_the_pool_is_full() -> None:
    kv = pool(pages=3)
    kv.reserve(1, 48, 100)
    assert kv.fork(1, 2, 33, 33, 100) == NotNow(1)
    assert kv.fork(1, 2, 32, 32, 100) == Reservation([0, 1], 32, 32, 2)
    assert kv.exclusive_pages(1) == 1


def test_a_shared_page_waits_for_the_latest_step_whoever_leaves_last() -> None:
    kv = pool()
    kv.reserve(1, 32, 100)
    kv.fork(1, 2, 32, 32, 100)
    kv.free(1, after=5)
    assert (kv.free_pages, kv.returning_pages, kv.usage().used) == (6, 0, 2)
    kv.free(2, after=3)
    assert (kv.free_pages, kv.returning_pages) == (6, 2)
    kv.step_done(4)
    assert kv.returning_pages == 2
    kv.step_done(5)
    assert (kv.free_pages, kv.returning_pages) == (8, 0)


def test_three_owners_and_the_middle_one_leaves_latest() -> None:
    kv = pool()
    kv.reserve(1, 16, 100)
    kv.fork(1, 2, 16, 16, 100)
    kv.fork(2, 3, 16, 16, 100)
    kv.free(2, after=9)
    kv.free(1, after=4)
    assert kv.exclusive_pages(3) == 1
    kv.free(3, after=0)
    kv.step_done(8)
    assert (kv.free_pages, kv.returning_pages) == (7, 1)
    kv.step_done(9)
    assert kv.free_pages == 8


def test_a_step_remembered_for_a_shared_page_does_not_outlive_it() -> None:
    kv = pool(pages=1)
    kv.reserve(1, 16, 16)
    kv.fork(1, 2, 16, 16, 100)
    kv.free(1, after=2)
    kv.step_done(2)
    kv.free(2)
    kv.reserve(3, 16, 16)
    kv.free(3)
    assert (kv.free_pages, kv.returning_pages) == (1, 0)


def test_a_late_step_is_forgotten_with_the_last_owner() -> None:
    kv = pool(pages=1)
    kv.reserve(1, 16, 16)
    kv.fork(1, 2, 16, 16, 100)
    kv.free(1, after=5)
    kv.free(2)
    kv.step_done(5)
    kv.check()
    kv.reserve(3, 16, 16)
    kv.check()


def test_forking_again_at_a_shorter_length_forgets_no_shared_page() -> None:
    kv = pool()
    kv.reserve(1, 48, 100)
    kv.fork(1, 2, 48, 48, 100)
    kv.fork(1, 3, 16, 16, 100)
    kv.free(1)
    assert (kv.usage().used, kv.exclusive_pages(2)) == (3, 2)
    kv.check()


def test_nobody_shrinks_into_a_page_that_another_reads() -> None:
    kv = pool()
    kv.reserve(1, 32, 100)
    kv.fork(1, 2, 32, 32, 100)
    with pytest.raises(InvariantError, match="page 7 is shared"):
        kv.shrink(1, 31)
    kv.shrink(1, 16)
    assert (kv.table(1), kv.exclusive_pages(2)) == ([6], 1)
    kv.shrink(2, 31)
    kv.check()


def test_growing_after_a_fork_is_private() -> None:
    kv = pool()
    kv.reserve(1, 32, 100)
    kv.fork(1, 2, 32, 32, 100)
    assert kv.grow([1, 2]) == [5, 4]
    assert (kv.table(1), kv.table(2), kv.exclusive_pages(1)) == ([6, 7, 5], [6, 7, 4], 1)


def test_callers_that_break_their_duties_are_told() -> None:
    kv = pool()
    kv.reserve(1, 32, 100)
    kv.reserve(2, 16, 100)
    kv.swap_out(2, 16, after=1)
    before = kv.dump()
    for call in (
        lambda: kv.reserve(2, 16, 100),
        lambda: kv.reserve(1, 101, 100),
        lambda: kv.reserve(3, 0, 100),
        lambda: kv.fork(1, 1, 16, 16, 100),
        lambda: kv.fork(1, 2, 16, 16, 100),
        lambda: kv.fork(1, 3, 33, 33, 100),
        lambda: kv.fork(3, 4, 1, 1, 100),
        lambda: kv.swap_out(1, 33, after=2),
        lambda: kv.swap_out(2, 16, after=2),
        lambda: kv.swap_in(1, 32, 100, after=2),
        lambda: kv.shrink(1, -1),
        lambda: kv.shrink(2, 1),
        lambda: kv.free(3),
    ):
        with pytest.raises(InvariantError):
            call()
        assert kv.dump() == before


def test_a_loaded_pool_hands_out_the_same_pages_in_the_same_order() -> None:
    kv = pool(pages=12)
    kv.reserve(1, 40, 100)
    kv.fork(1, 2, 40, 40, 100)
    kv.reserve(3, 20, 100)
    kv.free(1, after=6)
    kv.swap_out(3, 20, after=5)
    kv.reserve(5, 30, 100)
    kv.reserve(6, 20, 100)
    kv.free(5)
    kv.free(6)
    twin = pool(pages=12)
    twin.load(kv.dump())
    for one in (kv, twin):
        one.free(2, after=2)
        one.step_done(5)
        one.swap_in(3, 20, 100, after=7)
        one.step_done(6)
        one.reserve(4, 80, 100)
    assert twin.dump() == kv.dump()
    assert twin.table(4) == kv.table(4)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("pool.free", [0, 1, 2], "nowhere"),
        ("pool.free", [0, 1, 2, 3, 4, 4], "page 4 is in"),
        ("pool.free", [0, 1, 2, 3, 4, 9], "outside"),
        ("pool.free", "all", "Expected `array`"),
        ("pool.returning", [[0, [[5]]]], "although step 0 is done"),
        ("tables.tables", [[1, [6, 6]]], "twice"),
        ("tables.holders", [[6, 2]], "are held by"),
        ("tables.late", [[6, 2]], "waits for step 2"),
        ("tables.leading", [[7, 1]], "request 7"),
        ("shape", {"allocator": "contiguous", "pages": 8, "page_size": 16, "host_pages": 8}, "contiguous"),
        ("shape", {"allocator": "paged", "pages": 0, "page_size": 16, "host_pages": 8}, "at least one page"),
        ("tables.host", {"free": [], "returning": [], "stored": []}, "host pages are nowhere"),
        (
            "tables.host",
            {"free": [7], "returning": [], "stored": [[1, 0, [0, 1, 2, 3, 4, 5, 6]]]},
            "both on the device",
        ),
        ("extra", 0, "unknown field"),
    ],
)
def test_a_malformed_snapshot_is_the_users_error_and_changes_nothing(field: str, value: object, says: str) -> None:
    kv = pool()
    kv.reserve(1, 32, 100)
    before, wrong = kv.dump(), kv.dump()
    place: Any = wrong
    *path, last = field.split(".")
    for each in path:
        place = place[each]
    place[last] = value
    with pytest.raises(UserError, match=says):
        kv.load(wrong)
    assert kv.dump() == before


@pytest.mark.parametrize(
    ("pages", "page_size", "host_pages", "field"),
    [(0, 16, 0, "pages"), (1, 0, 0, "page_size"), (1, 1, -1, "host_pages")],
)
def test_a_senseless_pool_is_refused(pages: int, page_size: int, host_pages: int, field: str) -> None:
    with pytest.raises(UserError) as caught:
        pool(pages, page_size, host_pages)
    assert caught.value.field == field


def test_check_names_what_is_wrong() -> None:
    kv = pool()
    kv.reserve(1, 32, 100)
    kv._pool.free_pages += 1
    with pytest.raises(InvariantError, match="the count of free pages says 7, but there are 6"):
        kv.check()
