"""A naive model of a page pool and of what can be found in it, for the conformance suite of allocators."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from stepwell.core.types import Page, RequestId, StepId

Prompt = tuple[int, ...]
"""What each full page of a prompt says, as a number."""


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
    """Which page holds the end of which prompt: ``known`` is exactly what can be found."""

    def __init__(self) -> None:
        self.known: dict[Prompt, Page] = {}
        self._keys: dict[Prompt, int] = {}

    def keys(self, prompt: Prompt) -> list[int]:
        """A number for each page together with all before it."""
        beginnings = [prompt[: place + 1] for place in range(len(prompt))]
        return [self._keys.setdefault(each, len(self._keys) * 7919 + 1) for each in beginnings]

    def longest(self, prompt: Prompt) -> list[Page]:
        """The pages of its longest known beginning."""
        pages: list[Page] = []
        while len(pages) < len(prompt) and (page := self.known.get(prompt[: len(pages) + 1])) is not None:
            pages.append(page)
        return pages

    def prompts(self) -> list[Prompt]:
        """Every beginning that ever had a key."""
        return list(self._keys)

    def publish(self, prompt: Prompt, table: Sequence[Page]) -> None:
        """``table`` holds ``prompt``; it stops counting where another page says the same."""
        for place, page in enumerate(table[: len(prompt)]):
            if self.known.setdefault(prompt[: place + 1], page) != page:
                return

    def idle(self, pool: PoolModel) -> int:
        """Known pages that nobody owns and that wait for nothing."""
        return sum(not pool.owners(page) and pool.wait.get(page, 0) <= pool.done for page in self.known.values())

    def overwrite(self, pages: Sequence[Page]) -> int:
        """``pages`` were handed out to be written; how many were known.  Nothing known may build on them."""
        gone = [prompt for prompt, page in self.known.items() if page in pages]
        for prompt in gone:
            del self.known[prompt]
        for prompt in self.known:
            assert len(prompt) == 1 or prompt[:-1] in self.known, f"the end of {prompt} outlived what it builds on"
        return len(gone)


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
