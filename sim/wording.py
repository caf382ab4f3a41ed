"""Words for what a journal holds: why a request waited, who was there, how long things took."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core.instructions import Blocked, Rejected
from stepwell.core.types import NS_PER_MS, NS_PER_S, RequestId

SHORT_OF = {
    "pages": "KV pages were short",
    "seats": "every seat was taken",
    "budget": "the step's token budget was spent",
    "in_flight": "a step in flight still named it",
    "policy": "the policy held it back",
}
"""By ``BlockReason``."""

REFUSED = {
    "prompt_too_long": "its prompt is longer than {} tokens, the most that fits",
    "queue_full": "the waiting line holds {} requests already",
    "queue_tokens_full": "the waiting line would hold more than {} prompt tokens",
    "class_queue_full": "its class has {} requests in the waiting line, its share",
    "class_queue_tokens_full": "its class would have more than {} prompt tokens in the waiting line, its share",
    "unknown_class": "its class is not defined",
}
"""By ``RejectCode``; the limit goes into the braces."""

_NAMED = 5


def refusal(item: Rejected) -> str:
    """Why it was refused on arrival."""
    return REFUSED[item.code].format(item.limit)


def many(count: int, noun: str) -> str:
    """``1 page``, ``2 pages``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def named(ids: Sequence[RequestId]) -> str:
    """Some ids, and how many more there are."""
    shown = ", ".join(map(str, ids[:_NAMED]))
    return f"{shown} and {len(ids) - _NAMED} more" if len(ids) > _NAMED else shown


def seconds(span_ns: int) -> str:
    """A span of time with the digits that matter."""
    if span_ns < NS_PER_MS:
        return f"{span_ns / 1000:.3g} µs" if span_ns else "0 s"
    if span_ns < NS_PER_S:
        return f"{span_ns / NS_PER_MS:.3g} ms"
    return f"{span_ns / NS_PER_S:.2f} s"


class Wait:
    """What happened in the line while one request waited in it.

    The scheduler says ``Blocked`` once, when the head of the line or its reason changes; it holds until it is said
    anew, or the head leaves.
    """

    def __init__(self, since_ns: int, id: RequestId) -> None:
        self.since_ns = since_ns
        self._id = id
        self._head: Blocked | None = None
        self._head_since_ns = 0
        self._spans: dict[tuple[bool, str], int] = {}
        self._ahead: dict[tuple[bool, str], dict[RequestId, None]] = {}
        self._most_short = 0
        self._before = self._overtook = 0

    def blocked(self, now_ns: int, item: Blocked) -> None:
        """Somebody stands at the head and cannot be admitted."""
        self._close(now_ns)
        self._head, self._head_since_ns = item, now_ns
        if item.request == self._id:
            self._most_short = max(self._most_short, item.short)

    def gone(self, now_ns: int, id: RequestId) -> None:
        """A request left the line without being admitted."""
        if self._head is not None and self._head.request == id:
            self._close(now_ns)

    def overtaken(self, now_ns: int, id: RequestId) -> None:
        """A request was admitted."""
        self.gone(now_ns, id)
        if id != self._id:
            self._before += 1
            self._overtook += id > self._id

    def reasons(self, now_ns: int) -> str:
        """The wait so far, in words; longest reason first; empty if nothing was in the way but the running step."""
        self._close(now_ns)
        said = []
        for key, span_ns in sorted(self._spans.items(), key=lambda item: -item[1]):
            own, reason = key
            if own:
                short = f" ({self._most_short} missing at most)" if reason == "pages" and self._most_short else ""
                said.append(f"{seconds(span_ns)} at the head of the line, while {SHORT_OF[reason]}{short}")
            else:
                who = named(list(self._ahead[key]))
                plural = "requests" if len(self._ahead[key]) > 1 else "request"
                said.append(f"{seconds(span_ns)} behind {plural} {who}, while {SHORT_OF[reason]}")
        if self._before:
            came = f", {self._overtook} of them arrived later" if self._overtook else ""
            said.append(f"{many(self._before, 'request')} went first{came}")
        return "; ".join(said)

    def _close(self, now_ns: int) -> None:
        head, self._head = self._head, None
        if head is None or now_ns == self._head_since_ns:
            return
        key = (head.request == self._id, head.reason)
        self._spans[key] = self._spans.get(key, 0) + now_ns - self._head_since_ns
        self._ahead.setdefault(key, {})[head.request] = None
