"""The conformance suite of page allocators: a state machine that plays an allocator against a naive model of it.

    from stepwell.core.testing import allocator_machine

    def make(pages, page_size, host_pages):
        return Mine(Mine.Options(), pages=pages, page_size=page_size, host_pages=host_pages)

    TestMine = allocator_machine(make).TestCase

The model knows who owns each page and which step it waits for, and nothing of how the allocator works.  After every
call the two must agree on every page.  A call that answers ``NotNow`` or raises must have changed nothing; at any point
the allocator may be replaced by one loaded from its dump, or be given one as a twin that must answer alike.
Prompts are drawn from few, so that they begin alike: what an allocator with ``reuses_prefixes`` finds must be exactly
what was published and not overwritten since, and blank pages go before known ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stepwell.core.errors import InvariantError, UserError
from stepwell.core.protocols import CopyPlan, KVAllocator, NotNow, Reservation
from stepwell.core.testing_pool import PoolModel, PrefixModel, Prompt, damaged
from stepwell.core.types import Fit, Page, RequestId, StepId

Make = Callable[[int, int, int], KVAllocator]
"""(device pages, tokens a page, host pages) -> an allocator with all its pages free."""

T = TypeVar("T")

_PAGES = st.integers(5, 14) | st.integers(1, 4)
_DELAYS = st.sampled_from((1, 2, 3, 0, -1))
_PICKS = st.integers(0, 1 << 20)
_TOKENS = st.integers(1, 9) | st.integers(1, 60)


class AllocatorMachine(RuleBasedStateMachine):
    """Rules are the allocator's calls; see ``allocator_machine``."""

    make: ClassVar[Make]

    def __init__(self) -> None:
        super().__init__()
        self.twin: KVAllocator | None = None
        self.limit: dict[RequestId, int] = {}
        self.tokens: dict[RequestId, int] = {}
        self.prompts: dict[RequestId, Prompt] = {}
        self.written: dict[RequestId, StepId] = {}
        self.last: RequestId = 0

    @initialize(pages=_PAGES, page_size=st.integers(1, 4), host_pages=st.sampled_from((8, 3, 1, 0)))
    def begin(self, pages: int, page_size: int, host_pages: int) -> None:
        self.dimensions = (pages, page_size, host_pages)
        self.kv = self.fresh()
        self.device = PoolModel("page", pages)
        self.host = PoolModel("host page", host_pages)
        self.key_tokens = self.kv.key_tokens
        self.prefixes = PrefixModel(page_size // self.key_tokens)

    # ------------------------------------------------------------------------------------------------- helpers

    def fresh(self) -> KVAllocator:
        return type(self).make(*self.dimensions)

    def need(self, tokens: int) -> int:
        return -(-tokens // self.dimensions[1])

    def step(self, delay: int) -> StepId:
        return max(0, self.device.done + delay)

    def running(self) -> list[RequestId]:
        return sorted(request for request in self.limit if request not in self.written)

    def call(self, name: str, *args: object) -> Any:
        """The allocator's answer.  ``NotNow`` changes nothing and names at least one page; a twin answers alike."""
        before = self.kv.dump()
        answer = getattr(self.kv, name)(*args)
        if isinstance(answer, NotNow):
            assert answer.short >= 1, f"{name}{args} has no room but misses no page"
            assert self.kv.dump() == before, f"{name}{args} had no room and yet changed something"
        if self.twin is not None:
            assert getattr(self.twin, name)(*args) == answer, f"{name}{args} answers otherwise after a dump and load"
            assert self.twin.dump() == self.kv.dump(), f"{name}{args} does otherwise after a dump and load"
        return answer

    def refused(self, name: str, *args: object) -> None:
        """A call that breaks a duty of the caller is a bug: it says so, and nothing is changed."""
        before = self.kv.dump()
        try:
            getattr(self.kv, name)(*args)
        except InvariantError:
            assert self.kv.dump() == before, f"{name}{args} was refused and yet changed something"
        else:
            raise AssertionError(f"{name}{args} should have been refused")

    def drop(self, request: RequestId) -> None:
        del self.limit[request], self.tokens[request], self.prompts[request]

    # --------------------------------------------------------------------------------------------------- rules

    @rule(tokens=_TOKENS, more=st.integers(0, 9), headroom=st.integers(0, 3), alike=_PICKS, computes=st.booleans())
    def reserve_new(self, tokens: int, more: int, headroom: int, alike: int, computes: bool) -> None:
        limit, prompt = tokens + more, self.prefixes.prompt(tokens // self.key_tokens, alike)
        keys = self.prefixes.keys(prompt)
        cached, found, sources = self.prefixes.find(prompt[: (tokens - 1) // self.key_tokens])
        fit = self.call("fits", tokens, limit)
        missing = self.call("pages_missing", tokens, limit, 0, keys)
        roomy = self.call("pages_missing", tokens, limit, headroom, keys) == 0
        assert (fit is Fit.NEVER) == (self.fresh().fits(tokens, limit) is not Fit.FITS), (
            "never means: not even if empty"
        )
        assert (fit is Fit.FITS) == (self.call("pages_missing", tokens, limit) == 0), f"fits says {fit}"
        request = self.last + 1
        needed, before = self.call("pages_needed", tokens, limit, keys), self.device.free()
        answer = self.call("reserve", request, tokens, limit, keys)
        assert (missing == 0) == isinstance(answer, Reservation), f"pages_missing said {missing}, reserve {answer}"
        if isinstance(answer, Reservation):
            self.last = request
            self.limit[request] = limit
            self.tokens[request] = tokens
            self.prompts[request] = prompt
            assert (answer.cached, answer.pages[: len(found)]) == (cached * self.key_tokens, found), "what keys find"
            whence = [source for source, target in answer.copies if target == answer.pages[len(found)]]
            assert len(whence) == len(answer.copies) == bool(sources), f"a page found in part is copied: {answer}"
            assert set(whence) <= set(sources), f"{sources} hold the part of a page that was found: {answer}"
            assert answer.shared == sum(self.device.owners(page) > 0 for page in found)
            self.device.adopt(request, found)
            self.appended(request, answer.pages[len(found) :], answer.capacity, tokens)
            assert needed == before - self.device.free(), f"pages_needed said {needed}"
        assert roomy == (isinstance(answer, Reservation) and before - needed >= headroom), "headroom"
        if computes and isinstance(answer, Reservation):
            self.computed(request, tokens)

    def appended(self, request: RequestId, pages: Sequence[Page], capacity: int, tokens: int) -> None:
        self.take(request, pages)
        assert capacity == self.capacity(request) >= tokens

    def take(self, request: RequestId, pages: Sequence[Page]) -> None:
        blank = self.device.free() - self.prefixes.idle(self.device)
        self.device.take(request, pages)
        gone = self.prefixes.overwrite(pages)
        assert gone == max(0, len(pages) - blank), f"{gone} known pages went for {pages}, with {blank} blank ones"

    @precondition(lambda self: self.running())
    @rule(pick=_PICKS, more=st.integers(0, 8))
    def reserve_more(self, pick: int, more: int) -> None:
        request = _one(self.running(), pick)
        tokens = max(1, min(self.tokens[request] + more, self.limit[request]))
        answer = self.call("reserve", request, tokens, self.limit[request])
        if isinstance(answer, NotNow):
            assert self.need(tokens) - len(self.device.pages.get(request, [])) > self.device.free()
        else:
            self.appended(request, answer.pages, answer.capacity, tokens)
            self.tokens[request] = tokens

    @precondition(lambda self: self.running())
    @rule(pick=_PICKS, size=_PICKS)
    def publish(self, pick: int, size: int) -> None:
        request = _one(self.running(), pick)
        self.computed(request, size % (self.tokens[request] + 1))

    def computed(self, request: RequestId, tokens: int) -> None:
        prompt = self.prompts[request]
        self.call("publish", request, tokens, self.prefixes.keys(prompt))
        if self.kv.reuses_prefixes:
            self.prefixes.publish(prompt[: tokens // self.key_tokens], self.device.pages.get(request, []))
            self.refused("publish", request, 1 + self.capacity(request), ())

    @rule()
    def forget(self) -> None:
        self.call("forget")
        self.prefixes.known.clear()

    @precondition(lambda self: self.running())
    @rule(picks=st.lists(_PICKS, max_size=5))
    def grow(self, picks: list[int]) -> None:
        """Asked only of requests whose table is below their limit, as the scheduler does."""
        full = {r for r in self.running() if self.capacity(r) >= self.limit[r]}
        chosen = [r for r in _distinct(self.running(), picks) if r not in full]
        answer = self.call("grow", chosen)
        assert isinstance(answer, NotNow) == (len(chosen) > self.device.free()), answer
        if isinstance(answer, list):
            for request, page in zip(chosen, answer, strict=True):
                self.take(request, [page])
        if len(chosen) < self.device.free():
            self.refused("grow", [*chosen, self.last + 5])

    def capacity(self, request: RequestId) -> int:
        return len(self.device.pages.get(request, [])) * self.dimensions[1]

    @precondition(lambda self: self.running())
    @rule(pick=_PICKS, tokens=st.integers(0, 40), delay=_DELAYS)
    def shrink(self, pick: int, tokens: int, delay: int) -> None:
        request = _one(self.running(), pick)
        table = self.device.pages.get(request, [])
        last = tokens // self.dimensions[1]
        if last < len(table):
            shared = tokens % self.dimensions[1] and self.device.owners(table[last]) > 1
            if shared or self.prefixes.until(table[last]) * self.key_tokens > tokens:
                self.refused("shrink", request, tokens, self.step(delay))
                return
        self.call("shrink", request, tokens, self.step(delay))
        kept = len(self.kv.table(request))
        assert kept >= min(self.need(tokens), len(table)), "shrink dropped pages that the tokens need"
        if kept < len(table):
            self.device.leave(request, self.step(delay), kept)
        self.tokens[request] = min(tokens, self.tokens[request])

    @precondition(lambda self: self.running())
    @rule(pick=_PICKS, size=_PICKS, more=st.integers(0, 9), room=st.integers(0, 9), leaves=st.none() | _DELAYS)
    def fork(self, pick: int, size: int, more: int, room: int, leaves: int | None) -> None:
        """``size`` says how much is shared, ``more`` what the child holds beyond that, ``room`` its limit beyond."""
        parent, child = _one(self.running(), pick), self.last + 1
        if not self.tokens[parent]:
            beyond = 1 + self.capacity(parent)
            self.refused("fork", parent, child, beyond, beyond, beyond)
            return
        shared = 1 + size % self.tokens[parent]
        tokens, limit = shared + more, shared + more + room
        full = shared // self.dimensions[1] if self.kv.shares_pages else 0
        missing = self.call("pages_missing", tokens, limit, -full)
        answer = self.call("fork", parent, child, shared, tokens, limit)
        assert (missing == 0) == isinstance(answer, Reservation), f"pages_missing said {missing}, fork {answer}"
        if isinstance(answer, Reservation):
            held = self.device.pages[parent][: self.need(shared)]
            assert (answer.cached, answer.shared, answer.pages[:full]) == (shared, full, held[:full]), "what is shared"
            assert answer.copies == list(zip(held, answer.pages, strict=False))[full:], "what is to be copied"
            self.device.share(parent, child, full)
            self.appended(child, answer.pages[full:], answer.capacity, tokens)
            self.last = child
            self.prompts[child] = self.prompts[parent][: shared // self.key_tokens]
            self.limit[child], self.tokens[child] = limit, tokens
        self.refused("fork", parent, parent, shared, tokens, limit)
        self.refused("fork", parent, self.last + 1, shared, shared - 1, limit)
        if leaves is not None:
            self.end(parent, self.step(leaves))

    @precondition(lambda self: self.limit)
    @rule(pick=_PICKS, delay=_DELAYS)
    def free(self, pick: int, delay: int) -> None:
        self.end(_one(sorted(self.limit), pick), self.step(delay))

    def end(self, request: RequestId, after: StepId) -> None:
        self.call("free", request, after)
        if request in self.written:
            self.leave_host(request, after)
        else:
            self.device.leave(request, after)
        self.drop(request)
        self.refused("free", request, after)

    def leave_host(self, request: RequestId, after: StepId) -> None:
        self.host.leave(request, max(after, self.written.pop(request)))

    @precondition(lambda self: self.running())
    @rule(pick=_PICKS, size=_PICKS, delay=_DELAYS)
    def swap_out(self, pick: int, size: int, delay: int) -> None:
        request, after = _one(self.running(), pick), self.step(delay)
        tokens = size % (self.tokens[request] + 1)
        need, room = self.need(tokens), self.host.free()
        plan = self.call("swap_out", request, tokens, after)
        assert isinstance(plan, NotNow) == (need > room), f"{need} host pages needed, {room} free: {plan}"
        if isinstance(plan, CopyPlan):
            table = self.device.pages.get(request, [])
            assert (plan.device, len(plan.host)) == (table[:need], need)
            self.host.take(request, plan.host)
            self.device.leave(request, after)
            self.written[request] = after
            self.tokens[request] = tokens
            self.refused("swap_out", request, tokens, after)
            self.refused("reserve", request, 1, self.limit[request])

    @precondition(lambda self: self.written)
    @rule(pick=_PICKS, more=st.integers(0, 8), delay=_DELAYS)
    def swap_in(self, pick: int, more: int, delay: int) -> None:
        request, after = _one(sorted(self.written), pick), self.step(delay)
        limit = self.limit[request]
        tokens = max(1, min(self.tokens[request] + more, limit))
        missing = self.call("pages_missing", tokens, limit)
        plan = self.call("swap_in", request, tokens, limit, after)
        assert isinstance(plan, NotNow) == (missing > 0), f"pages_missing said {missing}, swap_in {plan}"
        if isinstance(plan, CopyPlan):
            stored = self.host.pages.get(request, [])
            assert (plan.host, plan.device) == (stored, plan.table[: len(stored)])
            self.leave_host(request, after)
            self.appended(request, plan.table, plan.capacity, tokens)
            self.tokens[request] = tokens
            self.refused("swap_in", request, tokens, limit, after)

    @rule(steps=st.sampled_from((1, 2, 0)))
    def step_done(self, steps: int) -> None:
        done = self.device.done + steps
        self.call("step_done", done)
        self.device.done = self.host.done = done
        self.refused("step_done", done - 1)

    @rule()
    def host_lost(self) -> None:
        self.call("host_lost")
        for request in sorted(self.written):
            self.drop(request)
            self.refused("free", request)
        self.written.clear()
        self.host.pages.clear()
        self.host.wait.clear()

    @rule(request=st.integers(-3, 0), tokens=_TOKENS)
    def unknown(self, request: int, tokens: int) -> None:
        """Nobody reserved for ids up to 0."""
        for name, *args in (("free",), ("shrink", 1), ("swap_out", 1, 1), ("swap_in", 1, 1, 1), ("fork", -9, 1, 1, 1)):
            self.refused(str(name), request, *args)
        if self.device.free():
            self.refused("grow", [request])
        self.refused("reserve", request, 0, tokens)
        self.refused("reserve", request, tokens + 1, tokens)
        assert (len(self.kv.table(request)), self.kv.exclusive_pages(request)) == (0, 0)

    @rule(stay=st.booleans())
    def reload(self, stay: bool) -> None:
        """From here on work with a loaded allocator, or beside one."""
        data = self.kv.dump()
        stored = json.loads(json.dumps(data))
        assert stored == data, "a dump is JSON-like: lists, string keys, integers"
        loaded = self.fresh()
        loaded.load(stored)
        assert loaded.dump() == data
        self.twin = loaded if stay else None
        self.kv = self.kv if stay else loaded

    @rule(pick=_PICKS, change=st.sampled_from((-1, 1, 1000)))
    def load_damaged(self, pick: int, change: int) -> None:
        """One wrong number: refused and nothing changed, or as lawful as before."""
        data = self.kv.dump()
        victim = self.fresh()
        victim.load(data)
        for wrong in (None, [], {"nonsense": 1}, damaged(data, pick, change)):
            try:
                victim.load(wrong)
            except UserError:
                assert victim.dump() == data, "a load that failed changed something"
            else:
                assert wrong not in (None, [], {"nonsense": 1}), f"{wrong} was taken over"
                victim.check()

    # ---------------------------------------------------------------------------------------------- invariants

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "kv"):
            return
        kv, device, host = self.kv, self.device, self.host
        kv.check()
        pages, page_size, host_pages = self.dimensions
        assert (kv.page_size, kv.total_pages) == (page_size, pages)
        assert (kv.free_pages, kv.returning_pages) == (device.free(), len(device.waiting())), "free and returning"
        assert kv.free_host_pages == host.free(), "host pages"
        usage = kv.usage()
        assert usage.free + usage.used + usage.returning == usage.total == pages
        assert (usage.free, usage.used, usage.returning) == (kv.free_pages, device.owned(), kv.returning_pages)
        assert (usage.host_total, usage.host_free) == (host_pages, kv.free_host_pages)
        for prompt in self.prefixes.prompts():
            cached = kv.cached_tokens(self.prefixes.keys(prompt))
            assert cached == self.key_tokens * self.prefixes.longest(prompt), f"{cached} tokens of {prompt} are cached"
        for request in sorted(self.limit):
            table = device.pages.get(request, [])
            assert list(kv.table(request)) == table, f"the table of request {request}"
            alone = sum(1 for page in table if device.owners(page) == 1)
            assert kv.exclusive_pages(request) == alone, f"exclusive pages of request {request}"


def _one(items: Sequence[T], pick: int) -> T:
    return items[pick % len(items)]


def _distinct(items: Sequence[T], picks: Iterable[int]) -> list[T]:
    return list(dict.fromkeys(_one(items, pick) for pick in picks))


def allocator_machine(make: Make) -> type[RuleBasedStateMachine]:
    """A state machine to be run by hypothesis, for the allocators that ``make`` makes.

    ``allocator_machine(make).TestCase`` is a ``unittest`` case that pytest collects; ``make`` takes the number of
    device pages, tokens a page, and host pages, by position.
    """
    return type("AllocatorConformance", (AllocatorMachine,), {"make": staticmethod(make)})
