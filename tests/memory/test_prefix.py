"""What ``prefix`` adds to ``paged``: what is found, what is given up first, and that nobody finds a wrong page."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from stepwell.core.errors import InvariantError, UserError
from stepwell.core.page_keys import page_keys, salt_of
from stepwell.core.protocols import NotNow, Reservation
from stepwell.memory.eviction import ORDERS
from stepwell.memory.prefix import Prefix
from stepwell.tests.helpers.prompts import alike

SIZE = 4


def pool(pages: int, **options: Any) -> Prefix:
    made = msgspec.convert(options, Prefix.Options)
    return Prefix(made, pages=pages, page_size=SIZE, host_pages=8)


def play(kv: Prefix, request: int, keys: list[int], extra: int = 1) -> int:
    """A request that computes its prompt and leaves; returns the tokens that it found."""
    tokens = len(keys) * SIZE + extra
    answer = kv.reserve(request, tokens, tokens, keys)
    assert isinstance(answer, Reservation), answer
    kv.publish(request, tokens, keys)
    kv.free(request)
    kv.check()
    return answer.cached


@pytest.mark.parametrize(("prompt", "found"), [(15, 0), (16, 0), (17, 16), (63, 48), (64, 48), (65, 64)])
def test_pc_1_at_least_one_token_is_computed(prompt: int, found: int) -> None:
    kv = Prefix(Prefix.Options(), pages=16, page_size=16, host_pages=0)
    keys = list(range(1, prompt // 16 + 1))
    for request in (1, 2, 3):
        answer = kv.reserve(request, prompt, 100, keys)
        assert isinstance(answer, Reservation)
        assert answer.cached == (found if request > 1 else 0)
        kv.publish(request, prompt, keys)
        kv.free(request)


def test_running_requests_share_what_is_found_and_count_it_once() -> None:
    kv = pool(8)
    first = kv.reserve(1, 13, 20, [1, 2, 3])
    assert isinstance(first, Reservation)
    assert kv.cached_tokens([1, 2, 3]) == 0, "nothing is computed yet"
    kv.publish(1, 9, [1, 2, 3])
    assert kv.cached_tokens([1, 2, 3]) == 8
    assert kv.pages_needed(13, 20, [1, 2, 3]) == 2
    second = kv.reserve(2, 13, 20, [1, 2, 3])
    assert isinstance(second, Reservation)
    assert (second.cached, second.shared, second.pages[:2]) == (8, 2, first.pages[:2])
    assert (kv.usage().used, kv.free_pages) == (6, 2)
    assert (kv.exclusive_pages(1), kv.exclusive_pages(2)) == (2, 2)
    kv.free(1)
    assert (kv.usage().used, kv.exclusive_pages(2)) == (4, 4)
    kv.check()


def test_a_page_that_waits_for_a_step_is_found_and_waits_on() -> None:
    kv = pool(3)
    assert isinstance(kv.reserve(1, 5, 9, [1]), Reservation)
    kv.publish(1, 5, [1])
    kv.free(1, after=4)
    assert (kv.free_pages, kv.returning_pages) == (1, 2)
    answer = kv.reserve(2, 5, 9, [1])
    assert isinstance(answer, Reservation)
    assert (answer.cached, kv.free_pages, kv.returning_pages) == (4, 0, 1)
    kv.free(2)
    assert (kv.free_pages, kv.returning_pages) == (1, 2), "step 4 still reads it"
    kv.step_done(4)
    assert (kv.free_pages, kv.cached_tokens([1])) == (3, 4)


def test_chains_are_cut_from_the_tail_and_blank_pages_go_first() -> None:
    kv = pool(6)
    play(kv, 1, [1, 2, 3])
    assert kv.free_pages == 6
    for taken, left in ((3, 12), (4, 8), (5, 4), (6, 0)):
        assert isinstance(kv.reserve(9, taken * SIZE, taken * SIZE), Reservation)
        assert kv.cached_tokens([1, 2, 3]) == left
    assert isinstance(kv.grow([9]), NotNow)


@pytest.mark.parametrize(("eviction", "stays"), [("lru", 100), ("fifo", 200), ("lfu", 300), ("cost", 400)])
def test_each_order_gives_up_its_own(eviction: str, stays: int) -> None:
    """100 was computed first and found last, 200 computed last, 300 found most often, and 400 begins a long one."""
    kv = pool(10, eviction=eviction)
    play(kv, 1, [100])
    play(kv, 2, [300])
    for request in (3, 4, 5):
        play(kv, request, [300])
    play(kv, 6, [400, 401, 402])
    play(kv, 7, [200])
    play(kv, 8, [100])
    assert isinstance(kv.reserve(9, 9 * SIZE, 9 * SIZE), Reservation)
    kv.check()
    assert {key for key in (100, 200, 300, 400) if kv.cached_tokens([key])} == {stays}


def test_the_first_page_of_its_kind_is_the_one_that_is_known() -> None:
    """Two compute the same at once: the later one's pages stand behind, and so does what builds on them."""
    kv = pool(12)
    for request in (1, 2):
        assert isinstance(kv.reserve(request, 13, 13, [1, 2, 3]), Reservation)
    kv.publish(1, 4, [1, 2, 3])
    kv.publish(2, 13, [1, 2, 3])
    assert kv.cached_tokens([1, 2, 3]) == 4
    kv.publish(1, 13, [1, 2, 3])
    assert kv.cached_tokens([1, 2, 3]) == 12
    kv.free(2)
    kv.free(1)
    assert kv.free_pages == 12
    kv.check()


def test_what_is_forgotten_is_not_found() -> None:
    kv = pool(8)
    play(kv, 1, [1, 2])
    assert isinstance(kv.reserve(2, 9, 9, [1, 2]), Reservation)
    kv.forget()
    kv.check()
    assert kv.cached_tokens([1, 2]) == 0
    assert play(kv, 3, [1, 2]) == 0
    assert play(kv, 4, [1, 2]) == 8
    kv.free(2)
    kv.check()


def test_who_is_swapped_back_is_known_again() -> None:
    kv = pool(8)
    assert isinstance(kv.reserve(1, 9, 20, [1, 2]), Reservation)
    kv.swap_out(1, 9, 1)
    kv.step_done(1)
    kv.swap_in(1, 9, 20, 2)
    kv.step_done(2)
    kv.publish(1, 9, [1, 2])
    assert kv.cached_tokens([1, 2]) == 8
    kv.check()


def test_a_findable_page_is_not_written_again() -> None:
    kv = pool(8)
    assert isinstance(kv.reserve(1, 9, 20, [1, 2]), Reservation)
    kv.publish(1, 9, [1, 2])
    for tokens in (0, 3, 4, 7):
        with pytest.raises(InvariantError, match="shared"):
            kv.shrink(1, tokens)
    kv.shrink(1, 8)
    assert len(kv.table(1)) == 2


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"eviction": "mru"}, Prefix.Options)
    with pytest.raises(UserError):
        Prefix(Prefix.Options(), pages=0, page_size=1, host_pages=0)


# ------------------------------------------------------------------------------------------------ PC-3


class Cache:
    """A pool whose pages hold text: each answer is what its table says."""

    def __init__(self, eviction: str) -> None:
        self.kv = pool(12, eviction=eviction)
        self.held: dict[int, tuple[list[int], int]] = {}
        self.text: dict[int, int] = {}
        self.last = 0
        self.found = 0

    def submit(self, keys: list[int], computes: int) -> None:
        """Compute ``computes`` pages of a prompt of 4 pages and a token; everything found must say what it should."""
        answer = self.kv.reserve(self.last + 1, 17, 17, keys)
        if isinstance(answer, NotNow):
            return
        self.last += 1
        found = answer.cached // SIZE
        assert [self.text[page] for page in answer.pages[:found]] == keys[:found], "the answer is another's"
        for place in range(found, max(found, computes)):
            self.text[answer.pages[place]] = keys[place]
        self.kv.publish(self.last, max(found, computes) * SIZE, keys)
        self.held[self.last] = (keys, max(found, computes))
        self.found += found

    def leave(self, request: int) -> None:
        keys, computed = self.held.pop(request)
        says = [self.text[page] for page in self.kv.table(request)[:computed]]
        assert says == keys[:computed], "somebody wrote a page of a running request"
        self.kv.free(request)

    def evict(self, count: int) -> None:
        """Somebody takes ``count`` pages, writes over them, and leaves."""
        answer = self.kv.reserve(10**9, count * SIZE, count * SIZE)
        if isinstance(answer, Reservation):
            self.text.update(dict.fromkeys(answer.pages, -1))
            self.kv.free(10**9)


@pytest.mark.parametrize("eviction", ORDERS)
def test_pc_3_a_page_is_found_exactly_while_it_says_so(eviction: str) -> None:
    """Six prompts of 4 pages that share 0 to 3 of them, 12 pages, 20,000 operations; equal to no cache at all."""
    dice = random.Random(f"pc-3 {eviction}")
    prompts = [alike(4, shared, own) for shared, own in ((0, 1), (1, 1), (2, 1), (3, 1), (3, 2), (1, 2))]
    cache = Cache(eviction)
    for turn in range(20_000):
        draw = dice.random()
        if draw < 0.5:
            cache.submit(dice.choice(prompts), dice.randint(0, 4))
        elif draw < 0.9 and cache.held:
            cache.leave(dice.choice(list(cache.held)))
        elif draw < 0.98:
            cache.evict(dice.randint(1, 12))
        elif draw < 0.985:
            cache.kv.forget()
        if turn % 50 == 0:
            cache.kv.check()
        for prompt in prompts:
            known = cache.kv.cached_tokens(prompt) // SIZE
            pages = cache.kv._index.by_key
            assert [cache.text[pages[key].page] for key in prompt[:known]] == prompt[:known]
            assert all(key not in pages for key in prompt[known:])
    assert cache.found > 10_000


# ------------------------------------------------------------------------------------------------ keys


def test_keys_are_equal_exactly_as_far_as_prompts_are() -> None:
    salt = salt_of("tenant", b"secret")
    first = page_keys([1, 2, 3, 4, 5, 6, 7], 2, salt)
    assert len(first) == 3
    assert len(set(first)) == 3
    assert page_keys([1, 2, 3, 4, 9, 6], 2, salt)[:2] == first[:2]
    assert page_keys([1, 2, 3, 4, 9, 6], 2, salt)[2] != first[2]
    assert not set(page_keys([9, 2, 3, 4, 5, 6], 2, salt)) & set(first), "a key stands for all before it too"
    assert not set(page_keys([1, 2, 3, 4, 5, 6], 2, salt_of("other", b"secret"))) & set(first)
    assert not set(page_keys([1, 2, 3, 4, 5, 6], 2, salt_of("tenant", b"secret 2"))) & set(first)
    assert page_keys([1], 2, salt) == []
    assert all(0 <= key < 1 << 64 for key in first)


# ------------------------------------------------------------------------------------------------ quotas


def keep(kv: Prefix, request: int, keys: list[int], tenant: str) -> None:
    """A request of ``tenant`` that computes its prompt and leaves."""
    tokens = len(keys) * SIZE
    assert isinstance(kv.reserve(request, tokens, tokens, keys), Reservation)
    kv.publish(request, tokens, keys, tenant)
    kv.free(request)


def kept(kv: Prefix, chains: dict[str, list[list[int]]]) -> dict[str, int]:
    """Pages that are findable, by tenant."""
    return {tenant: sum(kv.cached_tokens(keys) // SIZE for keys in many) for tenant, many in chains.items()}


def test_whoever_keeps_more_than_its_quota_gives_up_first_and_keeps_its_quota() -> None:
    """Ten pages: six of "large", used last, and four of "small".  Of the six, a fifth of the pool is safe."""
    kv = pool(10, quota={"large": 0.2})
    chains = {"small": [[1, 2], [3, 4]], "large": [[11, 12, 13], [14, 15, 16]]}
    for request, (tenant, keys) in enumerate([(name, keys) for name, many in chains.items() for keys in many], 1):
        keep(kv, request, keys, tenant)
    assert kept(kv, chains) == {"small": 4, "large": 6}, "there is room"
    for taken, left in ((1, (4, 5)), (2, (4, 4)), (4, (4, 2)), (5, (3, 2)), (8, (0, 2)), (9, (0, 1))):
        assert isinstance(kv.reserve(9, taken * SIZE, 10 * SIZE), Reservation)
        assert tuple(kept(kv, chains).values()) == left
        kv.check()


@pytest.mark.parametrize("eviction", ORDERS)
def test_quotas_hold_through_anything(eviction: str) -> None:
    """As long as somebody keeps too much, nobody else loses a page; and a loaded copy goes on the same."""
    dice = random.Random(eviction)
    quota = {"a": 0.25, "b": 0.0}
    kv, twin = (pool(24, eviction=eviction, quota=quota) for _ in range(2))
    chains = {
        tenant: [[1000 * index + 100 * kind + place for place in range(6)] for kind in range(6)]
        for index, tenant in enumerate(("a", "b", "c"), 1)
    }
    live: list[int] = []
    for request in range(1, 1500):
        tenant = dice.choice("abc")
        keys = dice.choice(chains[tenant])[: dice.randint(1, 6)]
        before, waits = kept(kv, chains), kv.dump()
        answer = kv.reserve(request, len(keys) * SIZE, 99, keys)
        if isinstance(answer, Reservation):
            lost = {name: before[name] - count for name, count in kept(kv, chains).items()}
            if lost["c"]:
                assert idle(kv, "a") <= 6
                assert idle(kv, "b") == 0
            kv.publish(request, len(keys) * SIZE, keys, tenant)
            live.append(request)
        else:
            assert kv.dump() == waits
        while live and (len(live) > 5 or dice.random() < 0.5):
            kv.free(live.pop(dice.randrange(len(live))))
        if request % 50 == 0:
            kv.check()
            twin.load(kv.dump())
            assert twin.dump() == kv.dump()
            kv, twin = twin, kv


def idle(kv: Prefix, tenant: str) -> int:
    return sum(entry.owner == tenant and entry.stamp > 0 for entry in kv._index.by_page.values())


# ------------------------------------------------------------------------------------------------ pins


@pytest.mark.parametrize("eviction", ORDERS)
@pytest.mark.parametrize("early", [True, False])
def test_what_is_pinned_goes_last_and_once_unpinned_in_its_turn(eviction: str, early: bool) -> None:
    """Pinned before it is computed, or when it is already idle; and what goes on behind it is not."""
    kv = pool(12, eviction=eviction, pinned=0.25)
    if early:
        kv.pin([1, 2, 3], True)
    play(kv, 1, [1, 2, 3, 4])
    if not early:
        kv.pin([1, 2, 3], True)
    assert (kv.pin_room([77]), kv.pin_room([1, 2, 3])) == (0, 3), "what is pinned needs no room"
    kv.pin([1, 2, 77], True)
    assert 77 not in kv._index.pinned, "there is no room for more"
    for request in range(2, 30):
        play(kv, request, [100 * request + place for place in range(3)])
    assert kv.cached_tokens([1, 2, 3, 4]) == 3 * SIZE
    twin = pool(12, eviction=eviction, pinned=0.25)
    twin.load(kv.dump())
    for one in (kv, twin):
        assert isinstance(one.reserve(99, 10 * SIZE, 12 * SIZE), Reservation), (
            "others need the room: it goes, the end first"
        )
        assert one.cached_tokens([1, 2, 3]) == 2 * SIZE
        one.free(99)
        one.pin([1, 2, 3], False)
        assert one.pin_room([7, 8, 9, 10]) == 3
        one.check()
        for request in range(100, 130):
            play(one, request, [100 * request + place for place in range(3)])
        assert one.cached_tokens([1]) == 0


def test_what_two_pins_share_stays_until_both_are_taken_back() -> None:
    kv = pool(12, pinned=0.5)
    play(kv, 1, [1, 2, 3, 4])
    kv.pin([1, 2, 3], True)
    kv.pin([1, 2, 3], True)
    kv.pin([1, 2], True)
    twin = pool(12, pinned=0.5)
    twin.load(kv.dump())
    for one in (kv, twin):
        one.pin([1, 2, 3], False)
        one.pin([1], False)
        for request in range(2, 30):
            play(one, request, [100 * request + place for place in range(3)])
        assert one.cached_tokens([1, 2, 3]) == 2 * SIZE
        one.pin([1, 2], False)
        assert one.pin_room(list(range(50, 60))) == 6
        for request in range(30, 60):
            play(one, request, [100 * request + place for place in range(3)])
        assert one.cached_tokens([1]) == 0
    assert twin.dump() == kv.dump()
