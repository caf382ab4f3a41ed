"""Contiguous memory, worked by hand: one extent for the greatest length, first fit, merged when it returns."""

from __future__ import annotations

import pytest

from stepwell.core.errors import InvariantError, UserError
from stepwell.core.protocols import CopyPlan, NotNow, Reservation
from stepwell.core.types import Fit
from stepwell.memory.contiguous import Contiguous
from stepwell.memory.extents import Extents


def pool(pages: int = 10, page_size: int = 16, host_pages: int = 8) -> Contiguous:
    return Contiguous(Contiguous.Options(), pages=pages, page_size=page_size, host_pages=host_pages)


def scattered() -> Contiguous:
    """Ten pages, of which 0-1, 4-5 and 8-9 are free: six in all, never more than two together."""
    kv = pool()
    for request in (1, 2, 3, 4, 5):
        kv.reserve(request, 1, 32)
    for request in (1, 3, 5):
        kv.free(request)
    return kv


def test_the_greatest_length_is_reserved_at_once() -> None:
    kv = pool()
    assert kv.reserve(1, 1, 50) == Reservation([0, 1, 2, 3], 64)
    assert kv.reserve(1, 50, 50) == Reservation([], 64)
    assert list(kv.table(1)) == [0, 1, 2, 3]
    assert kv.usage().used == kv.exclusive_pages(1) == kv.pages_needed(1, 50) == 4
    with pytest.raises(InvariantError, match="holds 64 tokens, not 65"):
        kv.reserve(1, 65, 100)


def test_nobody_grows() -> None:
    kv = pool()
    kv.reserve(1, 1, 50)
    assert kv.grow([]) == []
    with pytest.raises(InvariantError, match="request 1 cannot grow"):
        kv.grow([1])


def test_scattered_pages_are_missing_although_they_are_free() -> None:
    kv = scattered()
    assert kv.free_pages == 6
    assert kv.fits(1, 48) is Fit.NOT_NOW
    assert kv.pages_missing(1, 48) == 1
    assert kv.pages_missing(1, 64) == 2
    assert kv.reserve(6, 1, 48) == NotNow(1)
    assert kv.pages_missing(1, 32) == 0
    assert kv.pages_missing(1, 32, headroom=5) == 1
    assert kv.pages_missing(1, 48, headroom=-1) == 0
    kv.check()


def test_first_fit_and_merging() -> None:
    kv = scattered()
    assert kv.reserve(6, 1, 16) == Reservation([0], 16)
    assert kv.reserve(7, 1, 32) == Reservation([4, 5], 32)
    kv.free(2)
    assert kv.reserve(8, 1, 48) == Reservation([1, 2, 3], 48)
    for request in (4, 6, 7, 8):
        kv.free(request)
    assert kv.reserve(9, 1, 160) == Reservation(list(range(10)), 160)


def test_no_room_ever_depends_on_the_greatest_length() -> None:
    kv = pool()
    assert kv.fits(1, 160) is Fit.FITS
    assert kv.fits(1, 161) is Fit.NEVER
    kv.reserve(1, 1, 1)
    assert kv.fits(1, 160) is Fit.NOT_NOW


def test_an_extent_in_quarantine_is_nobodys_and_merges_later() -> None:
    kv = pool()
    kv.reserve(1, 1, 80)
    kv.reserve(2, 1, 80)
    kv.free(1, after=3)
    kv.free(2, after=2)
    assert (kv.free_pages, kv.returning_pages) == (0, 10)
    kv.step_done(2)
    assert kv.reserve(3, 1, 96) == NotNow(1)
    kv.step_done(3)
    assert kv.reserve(3, 1, 96) == Reservation([0, 1, 2, 3, 4, 5], 96)


def test_shrinking_keeps_the_promise_of_the_greatest_length() -> None:
    kv = pool()
    kv.reserve(1, 60, 60)
    kv.shrink(1, 3)
    assert kv.reserve(1, 60, 60) == Reservation([], 64)


def test_a_child_gets_an_extent_of_its_own_and_every_page_is_copied() -> None:
    kv = pool()
    kv.reserve(1, 20, 60)
    assert kv.fork(1, 2, 20, 21, 50) == Reservation([4, 5, 6, 7], 64, cached=20, copies=[(0, 4), (1, 5)])
    assert kv.fork(1, 3, 20, 21, 50) == NotNow(2)
    assert kv.exclusive_pages(1) == 4


def test_swap_copies_what_is_filled_and_comes_back_to_a_whole_extent() -> None:
    kv = pool(pages=4)
    kv.reserve(1, 20, 60)
    assert kv.swap_out(1, 20, after=1) == CopyPlan(device=[0, 1], host=[6, 7])
    assert (kv.free_pages, kv.returning_pages, kv.free_host_pages) == (0, 4, 6)
    assert kv.swap_in(1, 20, 60, after=2) == NotNow(4)
    kv.step_done(1)
    assert kv.swap_in(1, 20, 60, after=2) == CopyPlan([0, 1], [6, 7], [0, 1, 2, 3], 64)
    kv.step_done(2)
    assert kv.free_host_pages == 8


@pytest.mark.parametrize(("host_pages", "short"), [(0, 2), (1, 1)])
def test_a_host_tier_too_small_refuses(host_pages: int, short: int) -> None:
    kv = pool(host_pages=host_pages)
    kv.reserve(1, 20, 60)
    assert kv.swap_out(1, 20, after=1) == NotNow(short)
    assert list(kv.table(1)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("free", [[3, 5], [5, 10]], "not beyond 5"),
        ("free", [[4, 10], [3, 4]], "not beyond 10"),
        ("free", [[3, 10]], "page 3 is in"),
        ("free", [[5, 10]], "page"),
        ("tables", [[1, [0, 3]]], "nowhere"),
        ("tables", [[1, [0, 4]], [2, [2, 2]]], "empty extent"),
    ],
)
def test_a_malformed_snapshot_is_the_users_error_and_changes_nothing(field: str, value: object, says: str) -> None:
    kv = pool()
    kv.reserve(1, 20, 60)
    before = kv.dump()
    assert isinstance(before, dict)
    with pytest.raises(UserError, match=says):
        kv.load({**before, field: value})
    assert kv.dump() == before


def test_extents_merge_on_both_sides() -> None:
    free = Extents(9)
    taken = [free.take(3), free.take(3), free.take(3)]
    first, second, third = (run for run in taken if run)
    assert (free.rows(), free.largest(), free.take(1)) == ([], 0, None)
    free.give(first)
    free.give(third)
    assert free.rows() == [(0, 3), (6, 9)]
    free.give(second)
    assert free.rows() == [(0, 9)]
