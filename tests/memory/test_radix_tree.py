"""The radix tree against a naive account of what each page holds, and the shapes that it takes."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.testing_pool import PrefixModel
from stepwell.core.types import Page
from stepwell.memory.eviction import ORDERS, Eviction
from stepwell.memory.radix_tree import RadixTree, TreeState

WORDS = st.lists(st.integers(0, 2), min_size=1, max_size=14).map(tuple)


class Readers:
    """Requests that find, compute and leave, on a pool of pages that never ends."""

    def __init__(self, per_page: int, eviction: Eviction = "lru") -> None:
        self.tree = RadixTree(per_page, ORDERS[eviction])
        self.model = PrefixModel(per_page)
        self.tables: list[list[Page]] = []
        self.holders: dict[Page, int] = {}
        self.pages = 0

    def read(self, says: tuple[int, ...]) -> int:
        """Hold what is found of it, compute the rest in new pages, and let it be found; returns the keys found."""
        tree, per_page = self.tree, self.model.per_page
        keys = self.model.keys(says)
        node, found = tree.find(keys, len(keys))
        assert found == self.model.longest(says)
        full = found // per_page
        if found % per_page:
            assert tree.page(node, full) in self.model.known[says[:found]]
        idle = tree.idle_before(node, full)
        before = tree.idle
        front = tree.hold(node, full)
        assert front == self.model.pages(says[:found])
        assert tree.idle == before - idle
        count = -(-len(says) // per_page) - full
        table = front + list(range(self.pages, self.pages + count))
        self.pages += count
        for page in table:
            self.holders[page] = self.holders.get(page, 0) + 1
        self.tables.append(table)
        node, known = tree.find(keys, len(keys))
        if known < len(keys):
            tree.add(node, known, keys[known:], table[known // per_page :])
        self.model.publish(says, table)
        return found

    def leave(self, pick: int) -> None:
        table = self.tables.pop(pick % len(self.tables))
        for page in reversed(table):
            self.holders[page] -= 1
            node = self.tree.by_page.get(page)
            if not self.holders[page] and node is not None:
                self.tree.release(node)

    def evict(self, count: int) -> list[Page]:
        gone = self.tree.evict(min(count, self.tree.idle))
        assert not any(self.holders[page] for page in gone)
        assert self.model.overwrite(gone) == len(gone)
        return gone

    def check(self) -> None:
        self.tree.check()
        known = {page for pages in self.model.known.values() for page in pages}
        assert set(self.tree.by_page) == known
        assert sorted(self.tree.idle_pages()) == sorted(page for page in known if not self.holders[page])
        for says in self.model.prompts():
            keys = self.model.keys(says)
            assert self.tree.find(keys, len(keys))[1] == self.model.longest(says)


@given(
    per_page=st.integers(1, 4),
    eviction=st.sampled_from(list(ORDERS)),
    deeds=st.lists(WORDS | st.integers(0, 99) | st.integers(1, 6).map(str), max_size=40),
)
def test_finds_exactly_what_pages_hold(
    per_page: int, eviction: Eviction, deeds: list[tuple[int, ...] | int | str]
) -> None:
    """A tuple is read, a number leaves, a string is how many pages are needed elsewhere; dumps go on alike."""
    readers = Readers(per_page, eviction)
    for deed in deeds:
        if isinstance(deed, tuple):
            readers.read(deed)
        elif isinstance(deed, str):
            readers.evict(int(deed))
        elif readers.tables:
            readers.leave(deed)
        readers.check()
        state = json.loads(msgspec.json.encode(readers.tree.state()))
        twin = RadixTree(per_page, ORDERS[eviction])
        twin.restore(msgspec.convert(state, TreeState))
        twin.check()
        assert json.loads(msgspec.json.encode(twin.state())) == state
        assert twin.evict(twin.idle) == _order(readers.tree, per_page, eviction)


def _order(tree: RadixTree, per_page: int, eviction: Eviction) -> list[Page]:
    """In which the idle pages would go, one at a time."""
    twin = RadixTree(per_page, ORDERS[eviction])
    twin.restore(msgspec.convert(json.loads(msgspec.json.encode(tree.state())), TreeState))
    return [page for _ in range(twin.idle) for page in twin.evict(1)]


def test_edges_are_as_long_as_can_be() -> None:
    """One node a run of keys that nobody parts from, however many pages and publications it took."""
    readers = Readers(4)
    tree = readers.tree
    keys = readers.model.keys((0,) * 64)
    for end in (3, 10, 31, 64):
        node, known = tree.find(keys[:end], end)
        tree.add(node, known, keys[known:end], list(range(known // 4, -(-end // 4))))
    assert len(set(tree.by_page.values())) == 1
    assert tree.by_page[0].keys == keys


def test_prompts_that_part_within_a_page_go_on_in_a_page_each() -> None:
    readers = Readers(4)
    assert readers.read((0, 0, 0, 0, 0, 0)) == 0
    assert readers.read((0, 0, 0, 0, 0, 1, 1, 1, 1)) == 5
    assert readers.tables == [[0, 1], [0, 2, 3]]
    assert readers.read((0, 0, 0, 0, 0, 1, 1, 1, 2)) == 8
    readers.leave(0)
    assert readers.evict(9) == [1]
    assert readers.read((0, 0, 0, 0, 0, 0)) == 5, "page 2 holds the beginning of what page 1 held"
    readers.check()
