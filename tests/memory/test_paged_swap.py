"""Swapping paged memory to the host, worked by hand: 8 device pages of 16 tokens, taken from the end; 8 host pages."""

from __future__ import annotations

import pytest

from stepwell.core.errors import InvariantError
from stepwell.core.protocols import CopyPlan, NotNow, Reservation
from stepwell.memory.paged import Paged


def pool(pages: int = 8, page_size: int = 16, host_pages: int = 8) -> Paged:
    return Paged(Paged.Options(), pages=pages, page_size=page_size, host_pages=host_pages)


def copied(answer: CopyPlan | NotNow) -> CopyPlan:
    assert isinstance(answer, CopyPlan)
    return answer


@pytest.mark.parametrize(("host_pages", "short"), [(0, 3), (1, 2), (2, 1)])
def test_a_host_tier_too_small_refuses_and_changes_nothing(host_pages: int, short: int) -> None:
    kv = pool(host_pages=host_pages)
    kv.reserve(1, 64, 100)
    before = kv.dump()
    assert kv.swap_out(1, 48, after=1) == NotNow(short)
    assert kv.dump() == before


def test_swap_out_copies_the_pages_that_hold_tokens_and_drops_the_others() -> None:
    kv = pool()
    kv.reserve(1, 64, 100)
    assert kv.swap_out(1, 33, after=5) == CopyPlan(device=[4, 5, 6], host=[5, 6, 7])
    assert (kv.free_pages, kv.returning_pages, kv.free_host_pages) == (4, 4, 5)
    assert kv.table(1) == ()
    kv.step_done(5)
    assert (kv.free_pages, kv.returning_pages, kv.free_host_pages) == (8, 0, 5)


def test_swap_in_reserves_room_and_the_host_pages_return_when_the_copy_is_done() -> None:
    kv = pool()
    kv.reserve(1, 33, 100)
    kv.swap_out(1, 33, after=5)
    kv.step_done(5)
    plan = copied(kv.swap_in(1, 49, 100, after=8))
    assert plan == CopyPlan(device=[4, 5, 6], host=[5, 6, 7], table=[4, 5, 6, 7], capacity=64)
    assert list(kv.table(1)) == plan.table
    assert kv.free_host_pages == 5
    kv.step_done(7)
    assert kv.free_host_pages == 5
    kv.step_done(8)
    assert kv.free_host_pages == 8


def test_swap_in_waits_for_room_of_the_whole_present_length() -> None:
    kv = pool(pages=4)
    kv.reserve(1, 40, 100)
    kv.swap_out(1, 40, after=1)
    kv.step_done(1)
    kv.reserve(2, 32, 100)
    before = kv.dump()
    assert kv.swap_in(1, 40, 100, after=2) == NotNow(1)
    assert kv.dump() == before
    with pytest.raises(InvariantError, match="do not fit in 2"):
        kv.swap_in(1, 32, 100, after=2)


def test_a_request_freed_while_swapped_gives_its_host_pages_back_when_no_copy_is_in_flight() -> None:
    kv = pool()
    kv.reserve(1, 32, 100)
    kv.swap_out(1, 32, after=3)
    kv.free(1)
    assert (kv.free_host_pages, kv.returning_pages) == (6, 2)
    kv.step_done(3)
    assert (kv.free_host_pages, kv.free_pages) == (8, 8)
    with pytest.raises(InvariantError, match="request 1"):
        kv.free(1)


def test_swapping_out_a_child_copies_shared_pages_and_leaves_the_parent_its_own() -> None:
    kv = pool()
    kv.reserve(1, 32, 100)
    kv.fork(1, 2, 32, 32, 100)
    assert copied(kv.swap_out(2, 32, after=4)).device == [6, 7]
    assert (kv.exclusive_pages(1), kv.returning_pages, kv.free_host_pages) == (2, 0, 6)
    kv.free(1)
    assert (kv.free_pages, kv.returning_pages) == (6, 2), "the copy still reads the pages"
    kv.step_done(4)
    assert kv.free_pages == 8


def test_a_lost_host_tier_is_free_again_and_its_requests_unknown() -> None:
    kv = pool()
    kv.reserve(1, 32, 100)
    kv.reserve(2, 32, 100)
    kv.swap_out(1, 32, after=1)
    kv.swap_out(2, 32, after=1)
    kv.free(2)
    kv.host_lost()
    assert kv.free_host_pages == 8
    kv.step_done(1)
    assert (kv.free_host_pages, kv.free_pages) == (8, 8)
    assert isinstance(kv.reserve(1, 16, 16), Reservation)
    kv.check()
