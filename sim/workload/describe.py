"""What a workload is like, in numbers: how requests arrive, how long they are, who sends them, what they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from stepwell.core.types import NS_PER_S
from stepwell.sim.stats import percentiles
from stepwell.sim.workload.request import RateProfile, RowReport, TraceRequest, Workload, shared_key_share

BINS = 60
"""Stretches of time that the rate is told of, equally long."""
MOST_NAMES = 12
"""Classes or tenants told one by one; all others together."""
OTHERS = "(all others)"


class Lengths(msgspec.Struct, frozen=True):
    """Token counts.  ``counts[k]`` are those from 2^k to 2^(k+1) - 1."""

    mean: float
    p50: int
    p90: int
    p99: int
    least: int
    most: int
    counts: list[int]


class RateOverTime(msgspec.Struct, frozen=True):
    """Arrivals, and the tokens they bring, in stretches of ``bin_ns`` from the first arrival on."""

    bin_ns: int
    requests: list[int]
    prompt_tokens: list[int]
    output_tokens: list[int]

    def per_s(self, counts: Sequence[int]) -> list[float]:
        """Counts as rates."""
        return [each * NS_PER_S / self.bin_ns for each in counts]


class Group(msgspec.Struct, frozen=True):
    """The requests of a class or a tenant."""

    name: str
    requests: int
    share: float
    prompt_mean: float
    output_mean: float


class Programs(msgspec.Struct, frozen=True):
    """Conversations, sessions, agents: requests that belong together."""

    programs: int
    requests: int
    """That belong to one."""
    mean: float
    most: int
    """Requests of one, on average and at most."""


class Description(msgspec.Struct, frozen=True):
    """See the module.  Tokens per second are None where they depend on the policy: requests that follow others.

    ``shared_keys`` is the share of prefix keys seen before, so the hit share of a cache that never forgets; None if the
    workload says nothing of prefixes.
    """

    name: str
    requests: int
    followers: int
    profile: RateProfile
    over_time: RateOverTime
    prompt: Lengths
    output: Lengths
    prompt_tokens_per_s: float | None
    output_tokens_per_s: float | None
    classes: list[Group]
    tenants: list[Group]
    programs: Programs
    cancelled: int
    """Whose clients leave, at a time or after a number of tokens."""
    key_tokens: int
    shared_keys: float | None
    report: RowReport | None
    notes: list[str]


def describe(workload: Workload, bins: int = BINS) -> Description:
    """The numbers of a workload that has requests."""
    requests = workload.requests
    profile = workload.profile()
    followers = workload.followers
    span_s = profile.span_ns / NS_PER_S
    rates = None if followers or not span_s else span_s

    def per_s(total: int) -> float | None:
        return total / rates if rates else None

    prompts, outputs = [each.prompt_tokens for each in requests], [offered_tokens(each) for each in requests]
    return Description(
        name=workload.name,
        requests=len(requests),
        followers=followers,
        profile=profile,
        over_time=_over_time([each for each in requests if not each.after] or requests[:1], bins),
        prompt=_lengths(prompts),
        output=_lengths(outputs),
        prompt_tokens_per_s=per_s(sum(prompts)),
        output_tokens_per_s=per_s(sum(outputs)),
        classes=_groups(requests, lambda each: each.klass),
        tenants=_groups(requests, lambda each: each.tenant),
        programs=_programs(each.program for each in requests),
        cancelled=sum(bool(each.cancel_ns or each.cancel_tokens) for each in requests),
        key_tokens=workload.key_tokens,
        shared_keys=shared_key_share(workload) if workload.key_tokens else None,
        report=workload.report,
        notes=workload.notes,
    )


def headline(it: Description) -> str:
    """The workload in a line."""
    shared = "" if it.shared_keys is None else f", {100 * it.shared_keys:.1f} % of prefix keys seen before"
    by_clock = f", {it.profile.requests:,} of them by the clock" if it.followers else ""
    return (
        f"{it.name}: {it.requests:,} requests{by_clock} over {span(it.profile.span_ns)}, "
        f"{it.profile.rate_per_s:.3g} a second, CV of gaps {it.profile.gap_cv:.2f}{shared}"
    )


def span(span_ns: int) -> str:
    """A length of time in the unit that suits it."""
    seconds = span_ns / NS_PER_S
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} s"


def offered_tokens(request: TraceRequest) -> int:
    """What its answer comes to: its true length, or what it was allowed, or until its client has enough."""
    bounds = [each for each in (request.max_tokens, request.cancel_tokens) if each]
    return min([request.output_tokens, *bounds])


def _over_time(requests: Sequence[TraceRequest], bins: int) -> RateOverTime:
    origin_ns = requests[0].arrival_ns
    span_ns = requests[-1].arrival_ns - origin_ns
    bin_ns = span_ns // bins + 1
    counts, prompts, outputs = [0] * bins, [0] * bins, [0] * bins
    for each in requests:
        at = (each.arrival_ns - origin_ns) // bin_ns
        counts[at] += 1
        prompts[at] += each.prompt_tokens
        outputs[at] += offered_tokens(each)
    return RateOverTime(bin_ns, counts, prompts, outputs)


def _lengths(values: Sequence[int]) -> Lengths:
    p50, p90, p99 = (int(each or 0) for each in percentiles(list(values), (0.5, 0.9, 0.99)))
    sizes = Counter(each.bit_length() - 1 for each in values)
    counts = [sizes[size] for size in range(max(sizes) + 1)]
    return Lengths(sum(values) / len(values), p50, p90, p99, min(values), max(values), counts)


def _groups(requests: Sequence[TraceRequest], name_of: Callable[[TraceRequest], str]) -> list[Group]:
    """The largest first; beyond ``MOST_NAMES`` together."""
    sizes = Counter(map(name_of, requests))
    shown = sorted(sizes, key=lambda name: (-sizes[name], name))[:MOST_NAMES]
    among = dict.fromkeys(shown)
    totals: dict[str, list[int]] = {}
    for each in requests:
        name = name_of(each)
        total = totals.setdefault(name if name in among else OTHERS, [0, 0, 0])
        total[0] += 1
        total[1] += each.prompt_tokens
        total[2] += offered_tokens(each)
    names = [*shown, *([OTHERS] if OTHERS in totals and OTHERS not in among else [])]
    return [
        Group(name, count, count / len(requests), prompts / count, outputs / count)
        for name in names
        for count, prompts, outputs in [totals[name]]
    ]


def _programs(names: Iterable[str]) -> Programs:
    sizes = Counter(name for name in names if name)
    total = sum(sizes.values())
    return Programs(len(sizes), total, total / len(sizes) if sizes else 0.0, max(sizes.values(), default=0))
