"""A radix tree over the keys of prompts: which pages hold the longest beginning of a prompt that is known.

After RadixAttention (Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS 2024),
with two differences.  Keys stand for all tokens before them, so whether an edge is followed to its end is one
comparison, and where it is left is found by bisection.  And a page holds several keys, so that prompts may part within
one: then each goes on in a page of its own, which its tree ends share up to there by having been copied.

A node is a run of keys, from its parent's end on, and of the pages that hold them.  The page in which it ends is its
own as long as nothing builds on it, then that of the nodes that do.  Of a node's pages the first ``held`` are in use;
the others are *idle*.  Whoever uses a page uses those before it, so what builds on an idle page is idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

import msgspec

from stepwell.core.errors import InvariantError
from stepwell.core.types import Page
from stepwell.memory.eviction import Worth
from stepwell.memory.tables import PageTables

NodeRow = tuple[int, list[int], list[Page], int, int, int, int, int, int]
"""(row of its parent, -1: the root; keys, pages, held, uses, born, stamp, base, serial)."""


class TreeState(msgspec.Struct, forbid_unknown_fields=True):
    """A snapshot: ``nodes`` with parents before children, and children in their order."""

    clock: int
    floor: int
    nodes: list[NodeRow]


class Node:
    """See the module.  ``start`` and ``first`` count the keys and pages before it; ``stamp`` says when its first page
    became idle, 0: none is; ``base`` is the worth of what had been evicted last by then."""

    __slots__ = (
        "base",
        "born",
        "children",
        "first",
        "held",
        "keys",
        "pages",
        "parent",
        "serial",
        "stamp",
        "start",
        "uses",
    )

    def __init__(self, parent: Node | None, start: int, first: int, keys: list[int], pages: list[Page]) -> None:
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.start = start
        self.first = first
        self.keys = keys
        self.pages = pages
        self.held = len(pages)
        self.uses = self.born = self.stamp = self.base = self.serial = 0

    @property
    def end(self) -> int:
        return self.start + len(self.keys)

    @property
    def depth(self) -> int:
        """How many pages come before its last one."""
        return self.first + len(self.pages) - 1


class RadixTree:
    """See the module.  ``by_page`` says which node a page belongs to (read it, don't write); ``idle`` counts pages."""

    def __init__(self, keys_per_page: int, worth: Worth) -> None:
        self.by_page: dict[Page, Node] = {}
        self.idle = 0
        self._per_page = keys_per_page
        self._root = Node(None, 0, 0, [], [])
        self._worth = worth
        self._clock = 0
        self._floor = 0
        # Idle ends of the tree as (worth, stamp, serial, node), and some that are neither any more.
        self._line: list[tuple[int, int, int, Node]] = []

    # ------------------------------------------------------------------------------------------------ questions

    def find(self, keys: Sequence[int], most: int) -> tuple[Node, int]:
        """How many of ``keys`` are known, ``most`` at most, and the node that the last of them is in.

        O(log keys) for each node on the way.
        """
        node, done, most = self._root, 0, min(len(keys), most)
        while done < most:
            child = node.children.get(keys[done])
            if child is None:
                break
            node, edge = child, child.keys
            length = min(len(edge), most - done)
            if edge[length - 1] == keys[done + length - 1]:
                done += length
                continue
            low, high = 1, length - 1
            while low < high:
                middle = (low + high + 1) // 2
                if edge[middle - 1] == keys[done + middle - 1]:
                    low = middle
                else:
                    high = middle - 1
            return node, done + low
        return node, done

    def page(self, node: Node, place: int) -> Page:
        """The page at ``place`` on the way to ``node``, or in which ``node`` ends."""
        while node.first > place and node.parent is not None:
            node = node.parent
        while place - node.first >= len(node.pages):
            node = next(iter(node.children.values()))
        return node.pages[place - node.first]

    def idle_before(self, node: Node | None, count: int) -> int:
        """How many of the first ``count`` pages on the way to ``node`` are idle; O(nodes)."""
        idle = 0
        while node is not None:
            idle += max(0, min(count - node.first, len(node.pages)) - node.held)
            node = node.parent
        return idle

    # -------------------------------------------------------------------------------------------------- changes

    def hold(self, node: Node, count: int) -> list[Page]:
        """Somebody found the first ``count`` pages on the way to ``node``, and uses them from here on."""
        if 0 < count - node.first < len(node.pages):
            node = self._split(node, count * self._per_page)
        parts: list[list[Page]] = []
        way: Node | None = node
        while way is not None:
            if way.pages and way.first < count:
                way.uses += 1
                self.idle -= len(way.pages) - way.held
                way.held = len(way.pages)
                way.stamp = 0
                parts.append(way.pages)
            way = way.parent
        return [page for part in reversed(parts) for page in part]

    def release(self, node: Node) -> None:
        """Nobody uses the last of the pages of ``node`` that were in use any more."""
        if node.held == len(node.pages):
            self._clock += 1
            node.stamp, node.base = self._clock, self._floor
            if not node.children:
                self._line_up(node)
        node.held -= 1
        self.idle += 1

    def add(self, node: Node, done: int, keys: list[int], pages: list[Page]) -> Page | None:
        """Enter ``keys`` behind the first ``done``, which end in ``node``; ``pages`` hold them, and all are in use.

        The first of ``pages`` also holds what keys come before on the same page.  Returns the page that did so up to
        now, if nothing builds on that one: it is not findable any more.
        """
        dropped = None
        inside = done % self._per_page > 0
        if done < node.end:
            node = self._split(node, done)
        elif inside and not node.children and node.pages[-1] != pages[0]:
            dropped = self._drop_last(node)
        elif not node.children and node.parent is not None:
            if not node.uses:
                self._extend(node, keys, pages[1:] if inside else pages)
                return None
            if inside:
                node.pages.pop()
                node.held -= 1
        child = Node(node, done, done // self._per_page, keys, pages)
        self._clock += 1
        child.born = child.serial = self._clock
        node.children[keys[0]] = child
        self.by_page.update(dict.fromkeys(pages, child))
        return dropped

    def _extend(self, node: Node, keys: list[int], pages: list[Page]) -> None:
        """An end that nobody but the one who made it ever used."""
        node.keys += keys
        node.pages += pages
        node.held = len(node.pages)
        self._clock += 1
        node.born = self._clock
        self.by_page.update(dict.fromkeys(pages, node))

    def _drop_last(self, node: Node) -> Page:
        page = node.pages.pop()
        del self.by_page[page]
        if node.held > len(node.pages):
            node.held -= 1
        else:
            self.idle -= 1
            if node.held == len(node.pages):
                node.stamp = 0
        return page

    def _split(self, node: Node, at: int) -> Node:
        """Make a node of its own of the keys up to ``at``, and of the pages that are full by then; returns it."""
        length, count = at - node.start, at // self._per_page - node.first
        upper = Node(node.parent, node.start, node.first, node.keys[:length], node.pages[:count])
        upper.held, upper.uses, upper.born, upper.base = min(node.held, count), node.uses, node.born, node.base
        upper.stamp = node.stamp if upper.held < count else 0
        self._clock += 1
        upper.serial = self._clock
        assert node.parent is not None
        node.parent.children[node.keys[0]] = upper
        node.parent, node.start, node.first = upper, at, node.first + count
        node.keys, node.pages, node.held = node.keys[length:], node.pages[count:], max(0, node.held - count)
        upper.children[node.keys[0]] = node
        if node.held == len(node.pages):
            node.stamp = 0
        self.by_page.update(dict.fromkeys(upper.pages, upper))
        return upper

    def evict(self, count: int) -> list[Page]:
        """Give up ``count`` idle pages, there must be as many; in the order in which they went."""
        pages: list[Page] = []
        while len(pages) < count:
            worth, stamp, _, node = heappop(self._line)
            if node.stamp != stamp:
                continue
            self._floor = worth
            cut = max(node.held, len(node.pages) - (count - len(pages)))
            gone = node.pages[cut:]
            gone.reverse()
            del node.pages[cut:]
            for page in gone:
                del self.by_page[page]
            pages += gone
            self._shorten(node)
        self.idle -= count
        return pages

    def _shorten(self, node: Node) -> None:
        """Forget the keys of an end of the tree that no page holds any more; its parent may be an end then."""
        while node.parent is not None and not node.children:
            left = (node.first + len(node.pages)) * self._per_page - node.start
            if left <= 0:
                del node.parent.children[node.keys[0]]
                node.stamp = -1
                node = node.parent
                continue
            del node.keys[left:]
            if node.held < len(node.pages):
                self._line_up(node)
            else:
                node.stamp = 0
            return

    def clear(self) -> list[Page]:
        """Forget everything; returns the pages that were idle."""
        pages = self.idle_pages()
        self.by_page.clear()
        self._line.clear()
        self._root.children.clear()
        self.idle = 0
        return pages

    def _line_up(self, node: Node) -> None:
        if len(self._line) > 2 * self.idle + 64:
            self._line = [each for each in self._line if each[3].stamp == each[1]]
            heapify(self._line)
        heappush(self._line, (self._worth(node, node.base), node.stamp, node.serial, node))

    def _nodes(self) -> Iterator[Node]:
        """All but the root, parents before children."""
        nodes = list(self._root.children.values())
        for node in nodes:
            nodes += node.children.values()
            yield node

    # ---------------------------------------------------------------------------------------- snapshot and audit

    def idle_pages(self) -> list[Page]:
        return [page for node in self._nodes() for page in node.pages[node.held :]]

    def state(self) -> TreeState:
        """The state as it is, sharing its lists; its line follows from the nodes."""
        row = {self._root: -1}
        rows: list[NodeRow] = []
        for it in self._nodes():
            assert it.parent is not None
            row[it] = len(rows)
            above = row[it.parent]
            rows.append((above, it.keys, it.pages, it.held, it.uses, it.born, it.stamp, it.base, it.serial))
        return TreeState(self._clock, self._floor, rows)

    def restore(self, state: TreeState) -> None:
        """Become ``state``; ``InvariantError`` if its nodes do not form a tree."""
        self.clear()
        self._clock, self._floor = state.clock, state.floor
        nodes: list[Node] = []
        for above, keys, pages, held, uses, born, stamp, base, serial in state.nodes:
            if not -1 <= above < len(nodes) or not keys:
                raise InvariantError(f"row {len(nodes)} of the tree has no keys, or row {above} for a parent")
            parent = nodes[above] if above >= 0 else self._root
            if keys[0] in parent.children:
                raise InvariantError(f"two nodes of the tree go on with key {keys[0]}")
            node = Node(parent, parent.end, parent.end // self._per_page, list(keys), list(pages))
            node.held, node.uses, node.born = held, uses, born
            node.stamp, node.base, node.serial = stamp, base, serial
            parent.children[keys[0]] = node
            self.by_page.update(dict.fromkeys(pages, node))
            self.idle += max(0, len(pages) - held)
            nodes.append(node)
        ends = [node for node in nodes if node.stamp and not node.children]
        self._line = [(self._worth(node, node.base), node.stamp, node.serial, node) for node in ends]
        heapify(self._line)

    def check(self) -> None:
        """Raise ``InvariantError`` unless each node has the pages of its keys, and what builds on idle ones is idle."""
        lined_up = {serial for _, stamp, serial, node in self._line if node.stamp == stamp}
        idle, pages, serials = 0, 0, set()
        above = {self._root: False}
        for node in self._nodes():
            assert node.parent is not None
            places = node.end // self._per_page if node.children else -(-node.end // self._per_page)
            if len(node.pages) != places - node.first or node.start != node.parent.end:
                raise InvariantError(f"the node of keys {node.start} to {node.end} has pages {node.pages}")
            if any(self.by_page.get(page) is not node for page in node.pages):
                raise InvariantError(f"not all of pages {node.pages} belong to one node")
            count = len(node.pages) - node.held
            if node.held < 0 or count < 0 or (count > 0) != (node.stamp > 0) or not 0 <= node.stamp <= self._clock:
                raise InvariantError(f"of pages {node.pages}, {node.held} are in use, with stamp {node.stamp}")
            if above[node.parent] and node.held:
                raise InvariantError(f"pages {node.pages} are in use, but not those before them")
            if count and not node.children and node.serial not in lined_up:
                raise InvariantError(f"pages {node.pages} are idle and nothing builds on them, but they are in no line")
            above[node] = above[node.parent] or count > 0
            idle += count
            pages += len(node.pages)
            serials.add(node.serial)
        if (idle, pages) != (self.idle, len(self.by_page)) or len(serials) != len(above) - 1:
            raise InvariantError(f"{idle} of {pages} pages in the tree are idle, but the count says {self.idle}")


def check_tables(tree: RadixTree, tables: PageTables) -> None:
    """Raise ``InvariantError`` unless each findable page in a table is among the leading ones, at its own place, behind
    those that it builds on, and each page in use is in a table or waits; O(pages)."""
    for request, table in tables.by_request.items():
        leading = tables.leading.get(request, 0)
        for place, page in enumerate(table):
            node = tree.by_page.get(page)
            if node is None:
                continue
            if not (place < leading and 0 <= place - node.first < len(node.pages)) or tree.page(node, place) != page:
                raise InvariantError(f"page {page} of request {request} is findable at another place: {table}")
            if place and table[place - 1] != tree.page(node, place - 1):
                raise InvariantError(f"page {page} of request {request} does not build on the one before it: {table}")
