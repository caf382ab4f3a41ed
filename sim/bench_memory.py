"""Measures page allocators on this machine: time a page in bulk, of a prefix lookup, of a step, and what is wasted.

Times of a page are medians over fresh allocators by the wall clock, everything that an operation is asked for divided
by the pages that it concerns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from statistics import median

import numpy as np

from stepwell.core.build_kind import build_kind
from stepwell.core.config import MemoryConfig
from stepwell.core.protocols import KVAllocator, Reservation
from stepwell.core.registry import make_allocator
from stepwell.core.types import RequestId
from stepwell.sim.bench import STEPS, Drive, Line, machine, p50, p99, rss_mb
from stepwell.sim.workload.draws import uniforms

PAGES = 100_000
RUNNING = 256
WAITING = 100
PROMPT_TOKENS = 8_192

_PAGE = 16
LEAST_PAGES = 2 * PROMPT_TOKENS // _PAGE
_PER_PROMPT = PROMPT_TOKENS // _PAGE
_REPEATS = 5
_LOOKUPS = 400
_TURNS = 400
"""Of the churn that shows what is wasted; the first half of them only fills the pool."""


def bench_memory(allocators: Iterable[str], *, pages: int = PAGES, steps: int = STEPS) -> Iterator[Line]:
    """One line an allocator, behind the machine's; what an allocator does not do is null."""
    yield machine()
    for name in allocators:
        yield {
            "bench": "memory",
            "build": build_kind(),
            "allocator": name,
            "pages": pages,
            "page_size": _PAGE,
            **_Bulk(name, pages).figures(),
            **_steps(name, steps),
            "fragmentation": round(_fragmentation(_empty(name, pages)), 4),
            "rss_mb": rss_mb(),
        }


def _empty(name: str, pages: int) -> KVAllocator:
    return make_allocator(MemoryConfig(allocator=name, pages=pages, page_size=_PAGE, host_pages=0))


class _Bulk:
    """What whole prompts of ``PROMPT_TOKENS`` tokens cost, as many as the pool holds."""

    def __init__(self, name: str, pages: int) -> None:
        self._name = name
        self._pages = pages
        self._requests = range(1, 1 + pages // _PER_PROMPT)

    def figures(self) -> Line:
        runs = [self._run() for _ in range(_REPEATS)]
        figures: Line = {}
        for key, digits in (("ns_per_page", 0), ("us", 2)):
            for what in runs[0]:
                if what.endswith(key):
                    times = [value for run in runs if (value := run[what]) is not None]
                    figures[what] = round(median(times), digits or None) if times else None
        return figures

    def _run(self) -> dict[str, float | None]:
        kv = _empty(self._name, self._pages)
        first, other = self._keys(kv, 0), self._keys(kv, 1)
        times: dict[str, float | None] = {"reserve_ns_per_page": self._each(self._reserve(kv, first))}
        times["publish_ns_per_page"] = times["evict_ns_per_page"] = times["take_ns_per_page"] = None
        times["lookup_us"] = times["lookup_half_us"] = None
        if kv.reuses_prefixes:
            times["publish_ns_per_page"] = self._each(lambda id: kv.publish(id, PROMPT_TOKENS, first[id]))
        times["free_ns_per_page"] = self._each(kv.free)
        if kv.reuses_prefixes:
            times["lookup_us"] = self._lookup(kv, list(first.values()))
            halves = [keys[: len(keys) // 2] + other[id][len(keys) // 2 :] for id, keys in first.items()]
            times["lookup_half_us"] = self._lookup(kv, halves)
            times["take_ns_per_page"] = self._each(self._reserve(kv, first))
            for id in self._requests:
                kv.free(id)
            times["evict_ns_per_page"] = self._each(self._reserve(kv, other))
        times["grow_ns_per_page"] = self._growth()
        return times

    def _keys(self, kv: KVAllocator, salt: int) -> dict[RequestId, list[int]]:
        """Of prompts that have nothing in common."""
        if not kv.reuses_prefixes:
            return {id: [] for id in self._requests}
        each = PROMPT_TOKENS // kv.key_tokens
        keys: list[int] = np.random.PCG64(salt).random_raw(len(self._requests) * each).tolist()
        return {id: keys[(id - 1) * each : id * each] for id in self._requests}

    @staticmethod
    def _reserve(kv: KVAllocator, keys: dict[RequestId, list[int]]) -> Callable[[RequestId], None]:
        def reserve(id: RequestId) -> None:
            assert isinstance(kv.reserve(id, PROMPT_TOKENS, PROMPT_TOKENS, keys[id]), Reservation)

        return reserve

    def _each(self, do: Callable[[RequestId], None]) -> float:
        """Nanoseconds a page when ``do`` is done for each request."""
        start_ns = time.perf_counter_ns()
        for id in self._requests:
            do(id)
        return (time.perf_counter_ns() - start_ns) / (len(self._requests) * _PER_PROMPT)

    @staticmethod
    def _lookup(kv: KVAllocator, prompts: list[list[int]]) -> float:
        times_us = []
        for place in range(_LOOKUPS):
            keys = prompts[place * 7 % len(prompts)]
            start_ns = time.perf_counter_ns()
            kv.cached_tokens(keys)
            times_us.append((time.perf_counter_ns() - start_ns) / 1000)
        return median(times_us)

    def _growth(self) -> float | None:
        """``RUNNING`` requests that all grow by a page, until the pool is full; null for extents, which never grow."""
        kv = _empty(self._name, self._pages)
        requests = list(range(1, RUNNING + 1))
        limit = self._pages * _PAGE // RUNNING
        for id in requests:
            answer = kv.reserve(id, 1, limit)
            assert isinstance(answer, Reservation)
            if answer.capacity >= limit:
                return None
        turns = kv.free_pages // RUNNING
        start_ns = time.perf_counter_ns()
        for _ in range(turns):
            kv.grow(requests)
        return (time.perf_counter_ns() - start_ns) / (turns * RUNNING)


def _steps(name: str, steps: int) -> Line:
    """What the scheduler takes for a step with this allocator, under ``fcfs``."""
    drive = Drive("fcfs", RUNNING, steps, allocator=name)
    steady_us = drive.steady(steps)
    changing_us = Drive("fcfs", RUNNING, steps, waiting=WAITING, allocator=name).changing(steps)
    return {
        "running": drive.running,
        "steady_p50_us": p50(steady_us),
        "steady_p99_us": p99(steady_us),
        "change_p50_us": p50(changing_us),
        "change_p99_us": p99(changing_us),
    }


def _lengths(purpose: int, least: int, most: int) -> Iterator[int]:
    """Evenly drawn, both ends included."""
    for round in count():
        yield from (least + (uniforms(0, purpose, 4_096, round) * (most + 1 - least)).astype(int)).tolist()


def _fragmentation(kv: KVAllocator) -> float:
    """The share of the pool's token positions that hold nothing at moments when a request is refused, on average.

    Prompts of 100 to 1,600 tokens; answers of 1 to 512, and 512 are allowed.  All advance by 16 tokens a turn.
    """
    prompts, answers = _lengths(0, 100, 1_600), _lengths(1, 1, 512)
    tokens: dict[RequestId, int] = {}
    ends: dict[RequestId, int] = {}
    limits: dict[RequestId, int] = {}
    empty: list[float] = []
    last: RequestId = 0
    for turn in range(_TURNS):
        while True:
            last += 1
            prompt, answer = next(prompts), next(answers)
            if not isinstance(kv.reserve(last, prompt, prompt + 512), Reservation):
                break
            tokens[last], ends[last], limits[last] = prompt, prompt + answer, prompt + 512
        if turn >= _TURNS // 2:
            empty.append(1 - sum(tokens.values()) / (kv.total_pages * _PAGE))
        for id in list(tokens):
            tokens[id] = min(ends[id], tokens[id] + _PAGE)
            full = not isinstance(kv.reserve(id, tokens[id], limits[id]), Reservation)
            if full or tokens[id] == ends[id]:
                kv.free(id)
                del tokens[id], ends[id], limits[id]
    return sum(empty) / len(empty)
