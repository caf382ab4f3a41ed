"""Choices of one prompt: the first is computed, the others wait for that and share it (copy on write).

A request that names a parent *follows* it while the parent lives and its prompt is not computed: no policy knows of it.
Then it arrives to the policy, and is one like any other, but that much of its prompt is there as long as its parent
holds it on the device: it computes the last token of the prompt, and samples its own first token from that.
"""

from __future__ import annotations

from collections.abc import Mapping

from stepwell.core.request import Request
from stepwell.core.types import DECODING, PREFILLING, RequestId


class Followers:
    """Those who wait for the prompt of a parent, by parent."""

    __slots__ = ("by_parent",)

    def __init__(self) -> None:
        self.by_parent: dict[RequestId, dict[RequestId, Request]] = {}

    def __contains__(self, request: Request) -> bool:
        return request.id in self.by_parent.get(request.parent, ())

    def all(self) -> dict[RequestId, Request]:
        """All of them."""
        return {id: each for group in self.by_parent.values() for id, each in group.items()}

    def add(self, request: Request) -> None:
        self.by_parent.setdefault(request.parent, {})[request.id] = request

    def remove(self, request: Request) -> bool:
        """Whether it was one."""
        group = self.by_parent.get(request.parent, {})
        if group.pop(request.id, None) is None:
            return False
        if not group:
            del self.by_parent[request.parent]
        return True

    def take(self, parent: RequestId) -> list[Request]:
        """Those of one parent, in the order of their arrival; they wait no more."""
        group = self.by_parent.pop(parent, None) if self.by_parent else None
        return list(group.values()) if group is not None else []


def shared_tokens(request: Request, requests: Mapping[RequestId, Request]) -> int:
    """Tokens of its prompt that its admission would share with its parent; 0 if the device does not have them."""
    parent = requests.get(request.parent) if request.parent else None
    if parent is None or not parent.stands or not (parent.state is DECODING or parent.state is PREFILLING):
        return 0
    return min(request.prompt_tokens, request.known - 1)
