"""A naive model of a page pool and of what can be found in it, for the conformance suite of allocators."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from stepwell.core.types import Page, RequestId, StepId

Prompt = tuple[int, ...]
"""What the tokens of each key of a prompt say, as a number."""


class PoolModel:
    """Who owns which page of a pool, and the step after which a page without an owner may be owned again."""

    def __init__(self, what: str, total: int) -> None:
        self.what = what
        self.total = total
        self.done: StepId = 0
        self.pages: dict[RequestId, list[Page]] = {}
        self.wait: dict[Page, StepId] = {}

    def owners(self, page: Page) -> int:
        return sum(page in pages for pages in self.pages.values())

    def waiting(self) -> list[Page]:
        return [page for page, step in self.wait.items() if step > self.done and not self.owners(page)]

    def free(self) -> int:
        return self.total - self.owned() - len(self.waiting())

    def owned(self) -> int:
        return sum(1 for page in range(self.total) if self.owners(page))

    def take(self, request: RequestId, pages: Iterable[Page]) -> None:
        """The allocator handed out ``pages``: they must exist, be nobody's, and wait for nothing."""
        for page in pages:
            assert 0 <= page < self.total, f"{self.what} {page} does not exist"
            assert not self.owners(page), f"{self.what} {page} was handed out but belongs to somebody"
            assert self.wait.get(page, 0) <= self.done, f"{self.what} {page} was handed out before its step was done"
            self.wait.pop(page, None)
            self.pages.setdefault(request, []).append(page)

    def adopt(self, request: RequestId, pages: Iterable[Page]) -> None:
        """``request`` reads ``pages`` that hold what it would compute; what waits for a step goes on waiting."""
        self.pages.setdefault(request, []).extend(pages)

    def share(self, parent: RequestId, child: RequestId, count: int) -> None:
        """``child`` owns the first ``count`` pages of ``parent`` as well."""
        self.pages[child] = self.pages[parent][:count]

    def leave(self, request: RequestId, after: StepId, keep: int = 0) -> None:
        """``request`` drops its pages but the first ``keep``; whoever is the last to leave, the latest step counts."""
        pages = self.pages.pop(request, [])
        for page in pages[keep:]:
            self.wait[page] = max(after, self.wait.get(page, 0))
        if keep:
            self.pages[request] = pages[:keep]


class PrefixModel:
    """Which pages hold the end of which prompt: ``known`` is exactly what can be found.

    A page holds ``per_page`` keys, so that several pages can hold the same beginning of a page's keys.
    """

    def __init__(self, per_page: int) -> None:
        self.per_page = per_page
        self.known: dict[Prompt, list[Page]] = {}
        self._keys: dict[Prompt, int] = {}

    def keys(self, prompt: Prompt) -> list[int]:
        """A number for each key's tokens together with all before them."""
        beginnings = [prompt[: place + 1] for place in range(len(prompt))]
        return [self._keys.setdefault(each, len(self._keys) * 7919 + 1) for each in beginnings]

    def longest(self, prompt: Prompt) -> int:
        """How many keys of it are known."""
        count = 0
        while count < len(prompt) and prompt[: count + 1] in self.known:
            count += 1
        return count

    def pages(self, prompt: Prompt) -> list[Page]:
        """Those that hold the full pages of a known prompt: there is one each."""
        ends = range(self.per_page, len(prompt) + 1, self.per_page)
        return [page for end in ends for page in self.known[prompt[:end]]]

    def find(self, prompt: Prompt) -> tuple[int, list[Page], list[Page]]:
        """How many keys of it are known, the pages that are full of those, and any that hold the rest."""
        known = self.longest(prompt)
        return known, self.pages(prompt[:known]), self.known[prompt[:known]] if known % self.per_page else []

    def prompt(self, keys: int, alike: int) -> Prompt:
        """Prompts are of six pages, if not cut to ``keys``, and all alike up to some key."""
        most = 6 * self.per_page
        same = alike % (most + 1)
        return ((0,) * same + (1,) * (most - same))[:keys]

    def prompts(self) -> list[Prompt]:
        """Every beginning that ever had a key."""
        return list(self._keys)

    def until(self, page: Page) -> int:
        """The length of the longest known prompt that ends in ``page``; 0 if none does."""
        return max((len(prompt) for prompt, pages in self.known.items() if page in pages), default=0)

    def publish(self, prompt: Prompt, table: Sequence[Page]) -> None:
        """``table`` holds ``prompt``; it does not count if other pages say what is known of it already."""
        known = self.longest(prompt)
        full = known // self.per_page
        if known == len(prompt) or self.pages(prompt[:known]) != list(table[:full]):
            return
        for page in self.known[prompt[:known]][:] if known % self.per_page else []:
            if page != table[full] and self.until(page) == known:
                self._lose(page)
        for length in range(full * self.per_page + 1, len(prompt) + 1):
            pages = self.known.setdefault(prompt[:length], [])
            page = table[(length - 1) // self.per_page]
            if page not in pages:
                pages.append(page)

    def _lose(self, page: Page) -> bool:
        """``page`` does not hold anything any more; whether it did."""
        gone = [prompt for prompt, pages in self.known.items() if page in pages]
        for prompt in gone:
            self.known[prompt].remove(page)
            if not self.known[prompt]:
                del self.known[prompt]
        return bool(gone)

    def idle(self, pool: PoolModel) -> int:
        """Known pages that nobody owns and that wait for nothing."""
        known = {page for pages in self.known.values() for page in pages}
        return sum(not pool.owners(page) and pool.wait.get(page, 0) <= pool.done for page in known)

    def overwrite(self, pages: Sequence[Page]) -> int:
        """``pages`` were handed out to be written; how many were known.  Nothing known may build on them."""
        gone = sum([self._lose(page) for page in pages])
        for prompt in self.known:
            assert len(prompt) == 1 or prompt[:-1] in self.known, f"the end of {prompt} outlived what it builds on"
        return gone


def damaged(data: object, pick: int, change: int) -> object:
    """A copy of ``data`` in which one integer, the ``pick``-th, is off by ``change``."""
    copy: Any = json.loads(json.dumps(data))
    places: list[tuple[Any, Any]] = []
    nests: list[Any] = [copy]
    while nests:
        nest = nests.pop()
        for key in list(nest) if isinstance(nest, dict) else range(len(nest)):
            if isinstance(nest[key], int):
                places.append((nest, key))
            elif isinstance(nest[key], (list, dict)):
                nests.append(nest[key])
    nest, key = places[pick % len(places)]
    nest[key] += change
    return copy
