"""What ``radix`` adds to ``prefix``: parts of pages are found and copied, and nobody finds a wrong token."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from stepwell.core.errors import InvariantError, UserError
from stepwell.core.page_keys import page_keys
from stepwell.core.protocols import NotNow, Reservation
from stepwell.core.testing import allocator_machine
from stepwell.memory.eviction import ORDERS
from stepwell.memory.radix import Radix

SIZE = 4
MODEST = settings(max_examples=50, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))


def pool(pages: int, key_tokens: int = 1, **options: Any) -> Radix:
    made = msgspec.convert({"key_tokens": key_tokens} | options, Radix.Options)
    return Radix(made, pages=pages, page_size=SIZE, host_pages=8)


def keys_of(says: list[int], key_tokens: int = 1) -> list[int]:
    return page_keys(says, key_tokens, b"salt")


def begin(kv: Radix, request: int, says: list[int], more: int = 0) -> Reservation:
    answer = kv.reserve(request, len(says) + more, 100, keys_of(says))
    assert isinstance(answer, Reservation), answer
    return answer


def play(kv: Radix, request: int, says: list[int]) -> int:
    """A request that computes its prompt and leaves; returns the tokens that it found."""
    answer = begin(kv, request, says)
    kv.publish(request, len(says), keys_of(says))
    kv.free(request)
    kv.check()
    return answer.cached


@pytest.mark.parametrize("key_tokens", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("prompt", [15, 16, 17, 63, 64, 65])
def test_pc_1_all_but_one_token_is_found(prompt: int, key_tokens: int) -> None:
    kv = Radix(Radix.Options(key_tokens=key_tokens), pages=16, page_size=16, host_pages=0)
    keys = keys_of(list(range(prompt)), key_tokens)
    for request in (1, 2, 3):
        answer = kv.reserve(request, prompt, 100, keys)
        assert isinstance(answer, Reservation)
        assert answer.cached == ((prompt - 1) // key_tokens * key_tokens if request > 1 else 0)
        assert len(answer.copies) == (answer.cached % 16 > 0)
        kv.publish(request, prompt, keys)
        kv.free(request)


def test_prompts_that_part_within_a_page_share_those_before_it_and_copy_that_one() -> None:
    kv = pool(8)
    first = begin(kv, 1, [1, 2, 3, 4, 5, 6, 7])
    kv.publish(1, 7, keys_of([1, 2, 3, 4, 5, 6, 7]))
    second = begin(kv, 2, [1, 2, 3, 4, 5, 6, 9, 9, 9])
    assert (second.cached, second.shared, second.pages[0]) == (6, 1, first.pages[0])
    assert second.copies == [(first.pages[1], second.pages[1])]
    assert (kv.exclusive_pages(1), kv.exclusive_pages(2), kv.free_pages) == (1, 2, 4)
    kv.publish(2, 9, keys_of([1, 2, 3, 4, 5, 6, 9, 9, 9]))
    assert kv.cached_tokens(keys_of([1, 2, 3, 4, 5, 6, 9, 9, 8])) == 8
    assert kv.cached_tokens(keys_of([1, 2, 3, 4, 5, 6, 7])) == 7
    kv.check()


def test_a_page_is_copied_though_it_is_given_up_for_the_copy() -> None:
    """A pool of two pages: the request gets the very page of which it is to get a copy, and nothing is lost."""
    kv = pool(2)
    play(kv, 1, [1, 2, 3, 4, 5, 6])
    assert kv.pages_missing(8, 8, 0, keys_of([1, 2, 3, 4, 5, 9])) == 0
    answer = begin(kv, 2, [1, 2, 3, 4, 5, 9], more=2)
    assert answer.cached == 5
    assert answer.copies == [(answer.pages[1], answer.pages[1])]
    kv.check()


def test_a_page_whose_part_another_holds_too_is_not_kept() -> None:
    """Once somebody goes on from there in a copy, the page in which a prompt ended says nothing that others don't."""
    kv = pool(8)
    play(kv, 1, [1, 2, 3, 4, 5, 6])
    assert (kv.free_pages, kv.usage().used) == (8, 0)
    play(kv, 2, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert sorted(kv._tree.by_page) == sorted(kv._tree.idle_pages())
    assert len(kv._tree.by_page) == 3
    assert play(kv, 3, [1, 2, 3, 4, 5, 6]) == 5


def test_what_was_generated_behind_a_prompt_is_not_found() -> None:
    kv = pool(8)
    begin(kv, 1, [1, 2, 3, 4, 5], more=3)
    kv.publish(1, 8, keys_of([1, 2, 3, 4, 5]))
    assert kv.cached_tokens(keys_of([1, 2, 3, 4, 5, 6, 7, 8])) == 5
    for tokens in (0, 3, 4):
        with pytest.raises(InvariantError, match="shared"):
            kv.shrink(1, tokens)
    kv.shrink(1, 5)
    kv.check()


@pytest.mark.parametrize(("eviction", "stays"), [("lru", 100), ("fifo", 200), ("lfu", 300), ("cost", 400)])
def test_each_order_gives_up_its_own(eviction: str, stays: int) -> None:
    """100 was computed first and found last, 200 computed last, 300 found most often, and 400 begins a long one."""
    kv = pool(10, key_tokens=4, eviction=eviction)
    answers = [100, 300, 300, 300, 300, 400, 200, 100]
    for request, first in enumerate(answers, 1):
        keys = [400, 401, 402] if first == 400 else [first]
        answer = kv.reserve(request, len(keys) * SIZE + 1, 20, keys)
        assert isinstance(answer, Reservation)
        kv.publish(request, len(keys) * SIZE, keys)
        kv.free(request)
    assert isinstance(kv.reserve(99, 9 * SIZE, 9 * SIZE), Reservation)
    kv.check()
    assert {key for key in (100, 200, 300, 400) if kv.cached_tokens([key])} == {stays}


def test_keys_must_fill_pages() -> None:
    with pytest.raises(UserError, match="do not fill a page of 4"):
        pool(4, key_tokens=3)
    with pytest.raises(UserError, match="do not fill a page of 4"):
        pool(4, key_tokens=8)
    sizes = {size: Radix(Radix.Options(), pages=1, page_size=size, host_pages=0).key_tokens for size in (1, 3, 24, 64)}
    assert sizes == {1: 1, 3: 1, 24: 8, 64: 16}
    with pytest.raises(UserError, match="keys are of 1 tokens, not of 2"):
        pool(4, key_tokens=2).load(pool(4).dump())


@pytest.mark.parametrize("key_tokens", [1, 2])
def test_keys_finer_than_a_page_keep_the_contract(key_tokens: int) -> None:
    """``tests/conformance`` has keys of a whole page."""

    def make(pages: int, page_size: int, host_pages: int) -> Radix:
        options = Radix.Options(key_tokens=key_tokens if page_size % key_tokens == 0 else 1)
        return Radix(options, pages=pages, page_size=page_size, host_pages=host_pages)

    run_state_machine_as_test(allocator_machine(make), settings=MODEST)


class Cache:
    """A pool whose pages hold tokens: what a table finds, copied parts included, must say what the prompt says."""

    def __init__(self, key_tokens: int, eviction: str) -> None:
        self.kv = pool(12, key_tokens, eviction=eviction)
        self.key_tokens = key_tokens
        self.held: dict[int, tuple[list[int], int]] = {}
        self.cells = [[-1] * SIZE for _ in range(12)]
        self.last = 0
        self.found = 0
        self.copied = 0

    def read(self, table: list[int], tokens: int) -> list[int]:
        return [self.cells[table[place // SIZE]][place % SIZE] for place in range(tokens)]

    def submit(self, says: list[int], computes: int) -> None:
        """Compute a prompt up to ``computes`` tokens, and write what nobody may find behind it."""
        answer = self.kv.reserve(self.last + 1, len(says), 100, keys_of(says, self.key_tokens))
        if isinstance(answer, NotNow):
            return
        self.last += 1
        for source, target in answer.copies:
            self.cells[target] = self.cells[source][:]
            self.copied += 1
        table = answer.pages
        assert self.read(table, answer.cached) == says[: answer.cached], "the answer is another's"
        done = max(answer.cached, computes)
        for place in range(answer.cached, len(table) * SIZE):
            self.cells[table[place // SIZE]][place % SIZE] = says[place] if place < done else -1
        self.kv.publish(self.last, done, keys_of(says, self.key_tokens))
        self.held[self.last] = (says, done)
        self.found += answer.cached

    def leave(self, request: int) -> None:
        says, done = self.held.pop(request)
        assert self.read(list(self.kv.table(request)), done) == says[:done], "somebody wrote what it reads"
        self.kv.free(request)

    def evict(self, count: int) -> None:
        """Somebody takes ``count`` pages, writes over them, and leaves."""
        answer = self.kv.reserve(10**9, count * SIZE, count * SIZE)
        if isinstance(answer, Reservation):
            for page in answer.pages:
                self.cells[page] = [-1] * SIZE
            self.kv.free(10**9)


@pytest.mark.parametrize("key_tokens", [1, 2, 4])
@pytest.mark.parametrize("eviction", ORDERS)
def test_pc_3_a_token_is_found_exactly_while_it_is_there(eviction: str, key_tokens: int) -> None:
    """Prompts of 13 to 17 tokens that part anywhere, 12 pages, 4,000 operations."""
    dice = random.Random(f"pc-3 {eviction} {key_tokens}")
    cache = Cache(key_tokens, eviction)
    for turn in range(4_000):
        draw = dice.random()
        if draw < 0.5:
            alike, length = dice.randint(0, 16), dice.randint(13, 17)
            says = [1] * alike + [2 + dice.randint(0, 1)] * (length - alike)
            cache.submit(says[:length], dice.randint(0, length))
        elif draw < 0.9 and cache.held:
            cache.leave(dice.choice(list(cache.held)))
        elif draw < 0.98:
            cache.evict(dice.randint(1, 12))
        elif draw < 0.985:
            cache.kv.forget()
        if turn % 50 == 0:
            cache.kv.check()
    assert cache.found > 2_000
    assert (cache.copied > 100) == (key_tokens < SIZE)
