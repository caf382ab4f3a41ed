"""A request of a workload, the workload, and what became of the rows it was read from."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Literal

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_S

NOTES_LIMIT = 100
"""Rows that a report names one by one; beyond it they are only counted."""

STEEP = 3.0
"""A head this much slower or faster than the body is worth a warning."""
LEAST_FOR_HEAD = 20
"""With fewer requests the rate of the head is chance."""


class TraceRequest(msgspec.Struct, gc=False):
    """One request.  ``output_tokens`` is its true length, which only the simulated backend may know.

    ``keys`` identify its prompt's prefix, ``Workload.key_tokens`` tokens a key (the last one may be partly filled).
    ``answer_keys`` go on where the keys that the prompt fills end: the blocks that prompt and answer fill together, as
    a later request that begins with both has them.  ``cancel_ns`` is the absolute time at which the client leaves,
    ``cancel_tokens`` the number of output tokens after which it does; 0: never.  ``priority``, ``program`` and
    ``expires_ns`` are those of ``events.Submitted``.  ``max_tokens`` is what the client asked for at most; 0: nothing,
    so the context cap holds.  ``parent`` is an earlier request with the same prompt, by its place in the workload from
    1; 0: none.

    ``after`` names the requests, by their places in the workload from 1, that must have ended before this one arrives:
    ``think_ns`` after the last of them, and not before ``arrival_ns``.  However they ended counts, refused ones too, so
    the same requests arrive under every policy.  Its client's patience begins then: ``cancel_ns - arrival_ns``, as
    does the time to its deadline.
    """

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    klass: str = "chat"
    tenant: str = "default"
    keys: list[int] = []
    cancel_ns: int = 0
    priority: int = 0
    program: str = ""
    after: tuple[int, ...] = ()
    think_ns: int = 0
    answer_keys: tuple[int, ...] = ()
    max_tokens: int = 0
    expires_ns: int = 0
    cancel_tokens: int = 0
    parent: int = 0


class RowNote(msgspec.Struct, frozen=True):
    """A row that is not in the workload: its line in the file (from 1; or what the format counts), and why."""

    line: int
    outcome: Literal["dropped", "refused"]
    reason: str


class RowReport(msgspec.Struct, frozen=True):
    """What became of the rows of a file: ``rows == used + dropped + refused``.

    ``dropped``: well formed, but there is nothing to generate.  ``refused``: malformed, and skipped because the caller
    asked for it.  ``notes`` names the first ``NOTES_LIMIT`` of both.  ``unsorted``: rows earlier than one before them.
    """

    source: str
    format: str
    rows: int
    used: int
    dropped: int = 0
    refused: int = 0
    notes: list[RowNote] = []
    unsorted: int = 0
    unit: str = "line"
    """What is counted: lines of the file, or what else makes a row of it."""


class RateProfile(msgspec.Struct, frozen=True):
    """How requests arrive that follow no other.  The head is the first tenth of these, the body all others.

    Rates are requests after the first per second of their span (0 where there is no span); ``gap_cv`` is the standard
    deviation of the gaps between arrivals over their mean.
    """

    requests: int
    span_ns: int
    rate_per_s: float
    gap_cv: float
    head_rate_per_s: float
    body_rate_per_s: float
    simultaneous: int
    """Requests that arrive at the very time of the one before them."""

    @property
    def head_body_ratio(self) -> float:
        """Rate of the head over rate of the body; 1 where either has no rate."""
        if not self.head_rate_per_s or not self.body_rate_per_s:
            return 1.0
        return self.head_rate_per_s / self.body_rate_per_s

    @property
    def uneven(self) -> bool:
        """The head is much slower or faster than the body, and there are enough requests to say so."""
        return self.requests >= LEAST_FOR_HEAD and not 1 / STEEP <= self.head_body_ratio <= STEEP


class Workload(msgspec.Struct, frozen=True):
    """Requests in order of ``arrival_ns`` (those at one time keep the order in which they were given).

    ``key_tokens`` is how many prompt tokens one of a request's ``keys`` stands for; 0: the workload says nothing about
    shared prefixes.  ``notes`` tells, in sentences, what was done to it on the way.
    """

    name: str
    requests: list[TraceRequest]
    report: RowReport | None = None
    key_tokens: int = 0
    notes: list[str] = []

    def __post_init__(self) -> None:
        if any(each.after or each.parent for each in self.requests):
            ordered = in_order(self.requests)
        else:
            ordered = sorted(self.requests, key=attrgetter("arrival_ns"))
        msgspec.structs.force_setattr(self, "requests", ordered)

    def __len__(self) -> int:
        return len(self.requests)

    def digest(self) -> str:
        """SHA-256 over ``key_tokens`` and the requests, a JSON array a line: equal digests, equal workloads."""
        lines: list[object] = [["stepwell-workload", 1, self.key_tokens]]
        lines += [
            (r.arrival_ns, r.prompt_tokens, r.output_tokens, r.klass, r.tenant, r.keys, r.cancel_ns, *_seldom(r))
            for r in self.requests
        ]
        return hashlib.sha256(msgspec.json.Encoder().encode_lines(lines)).hexdigest()

    @property
    def followers(self) -> int:
        """Requests that arrive when others have ended."""
        return sum(1 for each in self.requests if each.after)

    @property
    def rate_unit(self) -> str:
        """What a rate of this workload counts: what arrives by the clock."""
        return rate_unit(self.followers)

    def profile(self) -> RateProfile:
        return rate_profile([r.arrival_ns for r in self.requests if not r.after])

    def describe(self) -> list[str]:
        """The head of a report: what arrives, what was left out of the file, what is missing."""
        profile, followers = self.profile(), self.followers
        apart = f", {followers} when others have ended and {profile.requests}" if followers else ""
        lines = [
            f"{self.name}: {len(self)} requests{apart} over {profile.span_ns / NS_PER_S:.1f} s, "
            f"{profile.rate_per_s:.2f} {rate_unit(followers)}, CV of gaps {profile.gap_cv:.2f}, "
            f"rate of the head / body {profile.head_body_ratio:.2f}, {profile.simultaneous} simultaneous"
        ]
        if followers:
            lines.append(programs_told(profile.requests, followers))
        if profile.uneven:
            lines.append(
                f"warning: the first tenth arrives at {profile.head_rate_per_s:.3g} {rate_unit(followers)}, the rest at"
                f" {profile.body_rate_per_s:.3g}: a run over the first requests does not speak for the whole"
            )
        if self.report is not None:
            lines += told_rows(self.report)
        if not self.key_tokens:
            lines.append("no prefix identity: nothing can be said about prefix reuse with this workload")
        return lines + self.notes


def _seldom(request: TraceRequest) -> tuple[object, ...]:
    """What few requests have: without it a request is written as it was before these fields came."""
    r = request
    rare = (r.priority, r.program, r.after, r.think_ns, r.answer_keys)
    rarer = (r.max_tokens, r.expires_ns, r.cancel_tokens, r.parent)
    if any(rarer):
        return (*rare, *rarer)
    return rare if r.after or r.think_ns or r.answer_keys else rare[:2] if r.priority or r.program else ()


def rate_unit(followers: int) -> str:
    """Of arrivals by the clock: requests, or what begins with each of them where others follow."""
    return "programs/s" if followers else "requests/s"


def programs_told(by_clock: int, followers: int) -> str:
    """What a rate is where requests follow others."""
    return (
        f"rates are of programs (sessions, chains of calls) that begin by the clock: {1 + followers / by_clock:.2f}"
        " requests each on average; when the others arrive depends on the policy"
    )


def told_rows(report: RowReport) -> list[str]:
    """What became of a file's rows, in sentences."""
    share = 100 * (report.dropped + report.refused) / report.rows if report.rows else 0.0
    lines = [
        f"{report.source} ({report.format}): {report.rows} rows, {report.used} used, {report.dropped} dropped, "
        f"{report.refused} refused ({share:.2f} % left out)"
    ]
    if report.unsorted:
        lines.append(f"{report.unsorted} rows were out of order in time; sorted, equal times in file order")
    lines += [f"{report.unit} {note.line}: {note.outcome}: {note.reason}" for note in report.notes]
    silent = report.dropped + report.refused - len(report.notes)
    return [*lines, f"and {silent} more rows left out"] if silent else lines


def rate_profile(arrivals_ns: list[int]) -> RateProfile:
    """Profile of arrival times in ascending order."""
    count = len(arrivals_ns)
    if count < 2:
        return RateProfile(count, 0, 0.0, 0.0, 0.0, 0.0, 0)
    gaps = [after - before for before, after in pairwise(arrivals_ns)]
    span_ns = arrivals_ns[-1] - arrivals_ns[0]
    # The variance in exact integers: n·Σg² − (Σg)², over n².
    spread = len(gaps) * sum(gap * gap for gap in gaps) - span_ns * span_ns
    head = min(max(count // 10, 1), count - 1)
    return RateProfile(
        requests=count,
        span_ns=span_ns,
        rate_per_s=_rate(count - 1, span_ns),
        gap_cv=math.sqrt(spread) / span_ns if span_ns else 0.0,
        head_rate_per_s=_rate(head, arrivals_ns[head] - arrivals_ns[0]),
        body_rate_per_s=_rate(count - 1 - head, arrivals_ns[-1] - arrivals_ns[head]),
        simultaneous=gaps.count(0),
    )


def _rate(gaps: int, span_ns: int) -> float:
    return gaps * NS_PER_S / span_ns if span_ns else 0.0


def shared_key_share(workload: Workload) -> float:
    """Share of keys seen before, in prompts or answers: the block hit rate of a cache that never forgets."""
    seen: set[int] = set()
    total = hits = 0
    for request in workload.requests:
        total += len(request.keys)
        hits += sum(key in seen for key in request.keys)
        seen.update(request.keys)
        seen.update(request.answer_keys)
    return hits / total if total else 0.0


def in_order(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """By ``arrival_ns``, those of one time as they were given, with ``after`` in terms of the new places.

    Raises ``UserError`` if somebody waits for a request that is not before it then: a follower's ``arrival_ns`` is not
    below that of those it follows, so there are no circles.
    """
    order = sorted(range(len(requests)), key=lambda index: requests[index].arrival_ns)
    ordered = _placed(requests, order)
    for place, each in enumerate(ordered, 1):
        if each.after and not (min(each.after) > 0 and max(each.after) < place):
            raise UserError(
                f"request {place} arrives after {', '.join(map(str, each.after))}, which must be before it by arrival",
                field="after",
            )
    return ordered


def part(requests: Sequence[TraceRequest], indices: Sequence[int]) -> list[TraceRequest]:
    """The requests at ``indices`` (from 0, ascending).  Whom they follow and is left out, they wait for no longer: who
    waits for nobody any more arrives at its ``arrival_ns``.  Whose parent is left out becomes the parent of the others
    that shared its prompt."""
    return _placed(requests, indices)


def _placed(requests: Sequence[TraceRequest], order: Sequence[int]) -> list[TraceRequest]:
    places = {index + 1: place for place, index in enumerate(order, 1)}
    heirs: dict[int, int] = {}
    count = len(requests)
    made = []
    for place, index in enumerate(order, 1):
        each = requests[index]
        if each.after:
            # A name that never was one is kept, for the check to find.
            after = tuple(places.get(old, old) for old in each.after if old in places or not 1 <= old <= count)
            if after != each.after:
                each = msgspec.structs.replace(each, after=after)
        if each.parent:
            parent = places.get(each.parent) or heirs.setdefault(each.parent, place)
            each = msgspec.structs.replace(each, parent=parent if parent < place else 0)
        made.append(each)
    return made
