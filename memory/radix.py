"""Paged KV memory that keeps computed prompts in a radix tree: what two prompts have in common is found to the token.

RadixAttention (Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS 2024) with
pages of several keys: pages that are common as a whole are shared, and of the page in which two prompts part, the later
one gets a copy, to go on in (copy on write).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from stepwell.core.errors import InvariantError, UserError
from stepwell.core.protocols import CopyPlan, KVUsage, NotNow, Reservation
from stepwell.core.types import Fit, Page, RequestId, StepId
from stepwell.memory import audit, duties, snapshot
from stepwell.memory.eviction import ORDERS, Eviction
from stepwell.memory.prefix_pool import PrefixPool, PrefixPoolState
from stepwell.memory.radix_tree import Node, RadixTree, TreeState, check_tables
from stepwell.memory.snapshot import Shape, TablesState
from stepwell.memory.tables import PageTables


class RadixState(msgspec.Struct, forbid_unknown_fields=True):
    """A snapshot."""

    shape: Shape
    key_tokens: int
    pool: PrefixPoolState
    tree: TreeState
    tables: TablesState


class Radix:
    """See ``KVAllocator`` for the contract; ``limit`` does not matter here.

    A table's findable pages are among its leading ones.  Whoever holds a findable page holds all pages before it in its
    prompt: so what builds on an idle page is idle, every idle page can be evicted in its turn, and a page in use never
    is.  A page of which a part is copied is not held for that: the copy is made before anybody can write it.
    """

    name = "radix"
    reuses_prefixes = True
    shares_pages = True

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """How finely prompts are compared, and what goes first when room is needed."""

        key_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
        """Tokens that a key stands for, a divisor of the page size; 1: to the token; 0: 16, 8, 4 or 2 if it is one, as
        finer keys find little more and have their price (docs/memory.md)."""

        eviction: Eviction = "lru"
        """``lru``: left longest ago; ``fifo``: computed longest ago; ``lfu``: found least often; ``cost``: cheapest to
        compute again."""

    def __init__(self, options: Options, *, pages: int, page_size: int, host_pages: int) -> None:
        """``pages`` device pages of ``page_size`` tokens, and ``host_pages`` to swap to; ``UserError`` if senseless."""
        self._shape = Shape(self.name, pages, page_size, host_pages)
        self.key_tokens = options.key_tokens or next(count for count in (16, 8, 4, 2, 1) if page_size % count == 0)
        if page_size % self.key_tokens:
            raise UserError(
                f"keys of {self.key_tokens} tokens do not fill a page of {page_size}", field="memory.options.key_tokens"
            )
        self.page_size = page_size
        self.total_pages = pages
        self._per_page = page_size // self.key_tokens
        self._tree = RadixTree(self._per_page, ORDERS[options.eviction])
        self._pool = PrefixPool(pages, self._tree)
        self._tables = PageTables(self._pool, page_size, host_pages)

    # ------------------------------------------------------------------------------------------------ questions

    @property
    def free_pages(self) -> int:
        return self._pool.free_pages

    @property
    def returning_pages(self) -> int:
        return self._pool.returning_pages

    @property
    def free_host_pages(self) -> int:
        return self._tables.host.free_pages

    def fits(self, tokens: int, limit: int) -> Fit:
        """Of a request that finds nothing.  ``NEVER`` if ``tokens`` exceed the whole pool, whatever ``limit`` says."""
        count = -(-tokens // self.page_size)
        if count > self.total_pages:
            return Fit.NEVER
        return Fit.FITS if count <= self.free_pages else Fit.NOT_NOW

    def pages_missing(self, tokens: int, limit: int, headroom: int = 0, keys: Sequence[int] = ()) -> int:
        """Exact: ``reserve`` succeeds if and only if it is 0 with no headroom, and so does ``swap_in`` without keys."""
        return max(0, headroom + self.pages_needed(tokens, limit, keys) - self.free_pages)

    def pages_needed(self, tokens: int, limit: int, keys: Sequence[int] = ()) -> int:
        """Pages that hold ``tokens``, less those that others hold (or steps in flight) and that ``keys`` find in whole.

        An idle page counts: it is free now and will not be then.
        """
        count = -(-tokens // self.page_size)
        if not keys:
            return count
        node, found = self._find(tokens, keys)
        full = found // self._per_page
        return count - full + self._tree.idle_before(node, full)

    def _find(self, tokens: int, keys: Sequence[int]) -> tuple[Node, int]:
        """What a request of ``tokens`` finds of ``keys``: one token at least is left to compute."""
        return self._tree.find(keys, (tokens - 1) // self.key_tokens)

    def cached_tokens(self, keys: Sequence[int]) -> int:
        """Tokens of the longest prefix of ``keys`` that is findable now."""
        return self._tree.find(keys, len(keys))[1] * self.key_tokens

    def table(self, request: RequestId) -> Sequence[Page]:
        """A live list: read it, don't write or keep it."""
        return self._tables.by_request.get(request, ())

    def exclusive_pages(self, request: RequestId) -> int:
        """O(log leading pages), as whoever shares a page shares those before it."""
        return self._tables.exclusive_pages(request)

    def usage(self) -> KVUsage:
        """``used`` counts a shared page once, and an idle one not at all."""
        return audit.usage(self, self._tables.host.total_pages)

    # ------------------------------------------------------------------------------------------------- growing

    def reserve(self, request: RequestId, tokens: int, limit: int, keys: Sequence[int] = ()) -> Reservation | NotNow:
        """``InvariantError`` if ``request`` is swapped out, or not 1 <= ``tokens`` <= ``limit``."""
        duties.within_limit(request, tokens, limit)
        if not keys or request in self._tables.by_request:
            return self._tables.reserve(request, tokens)
        duties.absent(request, self._tables.by_request, self._tables.host.stored)
        node, found = self._find(tokens, keys)
        if not found:
            return self._tables.reserve(request, tokens)
        return self._begin(request, tokens, node, found)

    def _begin(self, request: RequestId, tokens: int, node: Node, found: int) -> Reservation | NotNow:
        """A new table, with the full pages of what was found in front, and a copy of the page that it ends in."""
        count = -(-tokens // self.page_size)
        full, rest = divmod(found, self._per_page)
        short = count - full + self._tree.idle_before(node, full) - self._pool.free_pages
        if short > 0:
            return NotNow(short)
        source = self._tree.page(node, full) if rest else -1
        front = self._tree.hold(node, full) if full else []
        shared = self._pool.join(front, self._tables.holders)
        pages = self._tables.begin(request, front, count - full)
        copies = [(source, pages[full])] if rest else []
        return Reservation(pages, count * self.page_size, found * self.key_tokens, shared, copies)

    def grow(self, requests: Sequence[RequestId]) -> list[Page] | NotNow:
        """``InvariantError`` if one of them has no table; nothing is changed then either."""
        return self._tables.grow(requests)

    def publish(self, request: RequestId, tokens: int, keys: Sequence[int], tenant: str = "") -> None:
        """``InvariantError`` if its table does not hold ``tokens``.

        Nothing if its pages are not those that hold the keys known already: what builds on them is another's.
        """
        table = duties.table_of(request, self._tables.by_request)
        duties.holds(request, len(table) * self.page_size, tokens)
        last = min(tokens // self.key_tokens, len(keys))
        node, known = self._tree.find(keys, last)
        full = known // self._per_page
        if known == last or (full and self._tree.page(node, full - 1) != table[full - 1]):
            return
        end = -(-last // self._per_page)
        pages = table[full:end]
        dropped = self._tree.add(node, known, list(keys[known:last]), pages)
        counts = self._tables.holders.counts
        for page in pages:
            counts.setdefault(page, 1)
        if end > self._tables.leading.get(request, 0):
            self._tables.leading[request] = end
        if dropped is not None and dropped not in counts:
            self._pool.give([dropped], self._pool.unwait(dropped))

    def pin_room(self, keys: Sequence[int]) -> int:
        return 0

    def pin(self, keys: Sequence[int], on: bool) -> None:
        """Nothing: there is no room for any."""

    def fork(self, parent: RequestId, child: RequestId, shared: int, tokens: int, limit: int) -> Reservation | NotNow:
        """Pages full of ``shared`` tokens are the parent's too; of the next one its part is copied."""
        return self._tables.fork(parent, child, shared, tokens, limit)

    # ---------------------------------------------------------------------------------------------- giving back

    def shrink(self, request: RequestId, tokens: int, after: StepId = 0) -> None:
        """``InvariantError`` if the next token would be written where others read, or could find something."""
        table = duties.table_of(request, self._tables.by_request)
        full = max(tokens, 0) // self.page_size
        if full < len(table):
            node = self._tree.by_page.get(table[full])
            if node is not None and (full < node.depth or node.end * self.key_tokens > tokens):
                raise InvariantError(
                    f"request {request} cannot shrink to {tokens} tokens: page {table[full]} is shared"
                )
        self._tables.shrink(request, tokens, after)

    def free(self, request: RequestId, after: StepId = 0) -> None:
        """``InvariantError`` for a request that has neither a table nor host pages."""
        self._tables.free(request, after)

    def step_done(self, step: StepId) -> None:
        """``InvariantError`` if ``step`` is before one already reported."""
        self._tables.step_done(step)

    def forget(self) -> int:
        """Idle pages are blank from here on; pages in use stay with their requests, known to nobody else."""
        return self._pool.forget()

    # ------------------------------------------------------------------------------------------------- swapping

    def swap_out(self, request: RequestId, tokens: int, after: StepId) -> CopyPlan | NotNow:
        """Pages beyond ``tokens`` are dropped, not copied."""
        return self._tables.swap_out(request, tokens, after)

    def swap_in(self, request: RequestId, tokens: int, limit: int, after: StepId) -> CopyPlan | NotNow:
        """Into pages of its own.  ``InvariantError`` if not swapped out, or ``tokens`` need fewer pages than stored."""
        return self._tables.swap_in(request, tokens, limit, after)

    def host_lost(self) -> None:
        """Afterwards a swapped request is as unknown as one that was freed."""
        self._tables.host.lost()

    # ---------------------------------------------------------------------------------------- snapshot and audit

    def _state(self) -> RadixState:
        return RadixState(self._shape, self.key_tokens, self._pool.state(), self._tree.state(), self._tables.state())

    def dump(self) -> object:
        """The exact state, order of the free pages included: what is loaded from it behaves the same."""
        return snapshot.encode(self._state())

    def load(self, data: object) -> None:
        """Take over what ``dump`` wrote, of a pool of the same shape; ``UserError`` otherwise, and nothing changed."""
        snapshot.take_over(data, RadixState, self._state(), self._restore, self.check)

    def _restore(self, state: RadixState) -> None:
        if state.key_tokens != self.key_tokens:
            raise InvariantError(f"its keys are of {state.key_tokens} tokens, not of {self.key_tokens}")
        self._tree.restore(state.tree)
        self._pool.restore(state.pool)
        self._tables.restore(state.tables, self._pool.done)

    def check(self) -> None:
        """O(pages); each page is blank, idle, waiting, or in the tables of as many requests as counted; whatever is
        findable is found at its own place."""
        self._tables.check(self.total_pages, self._pool.places())
        check_tables(self._tree, self._tables)
