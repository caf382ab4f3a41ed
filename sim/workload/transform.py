"""Workloads made from workloads.  Each function leaves its argument as it is and notes what it did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import partial
from hashlib import blake2b
from operator import add
from typing import Literal

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_S
from stepwell.sim.workload import draws
from stepwell.sim.workload.request import TraceRequest, Workload, part

_SAMPLE = 50
"""Purpose of the draws of a sample (``draws.uniforms``)."""


def scale_rate(workload: Workload, factor: float) -> Workload:
    """Requests arrive ``factor`` times as fast: every arrival time divided by it, exactly, and rounded down.

    What clients do does not change: how long one waits before it leaves, how long one thinks before it goes on.
    """
    if not 1e-9 <= factor <= 1e9:
        raise UserError(f"must be between 1e-9 and 1e9, not {factor!r}", field="factor")
    ratio = Fraction(factor)
    above, below = ratio.denominator, ratio.numerator
    moved = _all_moved(workload.requests, lambda arrival_ns: arrival_ns * above // below)
    return _derived(workload, moved, f"rate multiplied by {factor:g}")


def shift_to_zero(workload: Workload) -> Workload:
    """The first request arrives at 0."""
    origin_ns = workload.requests[0].arrival_ns if workload.requests else 0
    moved = _all_moved(workload.requests, lambda arrival_ns: arrival_ns - origin_ns)
    return _derived(workload, moved, f"shifted by {-origin_ns} ns")


def joined(workloads: Sequence[Workload]) -> Workload:
    """One after another: each begins a mean gap between arrivals after the last arrival of the one before.

    Raises ``UserError`` if keys stand for different numbers of tokens, as nothing says then which are the same.
    """
    if len(workloads) == 1:
        return workloads[0]
    sizes = sorted({each.key_tokens for each in workloads if each.key_tokens})
    if len(sizes) > 1:
        raise UserError(f"keys stand for {' and '.join(map(str, sizes))} tokens; they cannot be joined", field="trace")
    requests: list[TraceRequest] = []
    begin_ns = 0
    for each in workloads:
        places = len(requests)
        origin_ns = each.requests[0].arrival_ns if each.requests else 0
        moved = _all_moved(each.requests, partial(add, begin_ns - origin_ns))
        requests += [
            msgspec.structs.replace(
                it,
                parent=it.parent and it.parent + places,
                after=tuple(place + places for place in it.after),
            )
            for it in moved
        ]
        if moved:
            span_ns = moved[-1].arrival_ns - begin_ns
            begin_ns = moved[-1].arrival_ns + span_ns // max(1, len(moved) - 1)
    name = " + ".join(each.name for each in workloads)
    return Workload(name, requests, key_tokens=sizes[0] if sizes else 0, notes=[f"{len(workloads)} joined: {name}"])


def all_at_once(workload: Workload) -> Workload:
    """Every request arrives at 0, in the same order, or as soon as those have ended that it comes after: what a device
    completes then is all that it can.
    """
    moved = [msgspec.structs.replace(_moved(each, 0), think_ns=0) for each in workload.requests]
    return _derived(workload, moved, "all arrive at once")


def first(workload: Workload, count: int) -> Workload:
    """The earliest ``count`` requests."""
    return limit(workload, count, note=f"limited to the first {count} of {len(workload)} requests")


def limit(workload: Workload, count: int, skip: int = 0, *, note: str = "") -> Workload:
    """``count`` requests after the first ``skip``; a slow start of a trace need not be what is measured."""
    if count < 1 or skip < 0:
        raise UserError(f"must keep at least 1 and skip at least 0, not {count} and {skip}", field="limit")
    kept = range(skip, min(skip + count, len(workload)))
    return _kept(workload, kept, note or f"requests {skip} to {skip + len(kept)} of {len(workload)}")


def window(workload: Workload, *, start_s: float = 0.0, end_s: float = 0.0) -> Workload:
    """Requests that arrive from ``start_s`` on and before ``end_s`` (0: to the end), counted from the first arrival.

    Times move so that the window begins at 0.  Raises ``UserError`` if nobody arrives in it.
    """
    if not 0 <= start_s <= 1e9 or (end_s and not start_s < end_s <= 1e9):
        raise UserError(f"must run from 0 or later to a later time, not from {start_s!r} to {end_s!r}", field="window")
    requests = workload.requests
    origin_ns = (requests[0].arrival_ns if requests else 0) + round(start_s * NS_PER_S)
    end_ns = origin_ns + round((end_s - start_s) * NS_PER_S) if end_s else None
    kept = [
        place
        for place, each in enumerate(requests)
        if each.arrival_ns >= origin_ns and (end_ns is None or each.arrival_ns < end_ns)
    ]
    if not kept:
        raise UserError(f"no request of {workload.name} arrives from {start_s:g} to {end_s:g} s", field="window")
    until = f"{end_s:g} s" if end_s else "the end"
    cut = _kept(workload, kept, f"{len(kept)} of {len(workload)} requests, from {start_s:g} s to {until}")
    moved = _all_moved(cut.requests, lambda arrival_ns: arrival_ns - origin_ns)
    return msgspec.structs.replace(cut, requests=moved)


def sample(
    workload: Workload, share: float, *, seed: int = 0, by: Literal["request", "program"] = "request"
) -> Workload:
    """Each request with probability ``share``, drawn from ``seed``; a larger share keeps what a smaller one does.

    By ``program`` all requests of one are kept or left out together; those of none are drawn alone, and choices of one
    prompt (``parent``) always go together.  Raises ``UserError`` if nothing is left.
    """
    if not 0 < share <= 1:
        raise UserError(f"must be above 0 and at most 1, not {share!r}", field="share")
    drawn = draws.uniforms(seed, _SAMPLE, len(workload)).tolist() if workload.requests else []
    bound = int(share * 2.0**64)
    chosen: list[bool] = []
    for place, each in enumerate(workload.requests):
        if by == "program" and each.program:
            chosen.append(_uniform(seed, each.program) < bound)
        elif each.parent:
            chosen.append(chosen[each.parent - 1])
        else:
            chosen.append(drawn[place] < share)
    kept = [place for place, each in enumerate(chosen) if each]
    if not kept:
        raise UserError(f"a share of {share:g} leaves no request of {len(workload)}", field="share")
    return _kept(
        workload, kept, f"{len(kept)} of {len(workload)} requests: a share of {share:g} by {by}, drawn with seed {seed}"
    )


def clip(
    workload: Workload,
    *,
    max_prompt: int | None = None,
    max_output: int | None = None,
    over: Literal["cut", "drop"] = "cut",
) -> Workload:
    """No prompt or output is longer than its limit: longer ones are cut to it, or their requests dropped.

    A cut prompt loses the keys beyond its end.  Raises ``UserError`` if every request is dropped.
    """
    for field, value in (("max_prompt", max_prompt), ("max_output", max_output)):
        if value is not None and value < 1:
            raise UserError(f"must be at least 1, not {value}", field=field)

    def cut(tokens: int, most: int | None) -> int:
        return tokens if most is None else min(tokens, most)

    clipped = [_clipped(each, cut, max_prompt, max_output, workload.key_tokens) for each in workload.requests]
    fits = [new is old for new, old in zip(clipped, workload.requests, strict=True)]
    if over == "cut":
        return _derived(
            workload, clipped, f"{fits.count(False)} requests clipped to prompt {max_prompt}, output {max_output}"
        )
    if not any(fits):
        raise UserError("every request is longer than the limits", field="max_prompt" if max_prompt else "max_output")
    return _kept(
        workload,
        [place for place, each in enumerate(fits) if each],
        f"{fits.count(False)} requests dropped: prompt above {max_prompt} or output above {max_output}",
    )


def _clipped(
    request: TraceRequest,
    cut: Callable[[int, int | None], int],
    max_prompt: int | None,
    max_output: int | None,
    key_tokens: int,
) -> TraceRequest:
    """The request itself if it fits."""
    prompt, output = cut(request.prompt_tokens, max_prompt), cut(request.output_tokens, max_output)
    if (prompt, output) == (request.prompt_tokens, request.output_tokens):
        return request
    keys, answer = request.keys, request.answer_keys
    if prompt < request.prompt_tokens:
        keys, answer = keys[: -(-prompt // key_tokens)] if key_tokens else keys, ()
    return msgspec.structs.replace(request, prompt_tokens=prompt, output_tokens=output, keys=keys, answer_keys=answer)


def page_keys(request: TraceRequest, key_tokens: int, page_size: int) -> list[int]:
    """Identity of each *full* page of the prompt, as far as the request's keys go; empty if it has none.

    A key stands for ``key_tokens`` tokens and all before them, so its pages are told apart by their place in it.
    Where pages do not divide the keys evenly, a page takes the key in which it ends.
    """
    if not request.keys or not key_tokens:
        return []
    return _paged(request.keys, key_tokens, page_size, page_size, _keyed(request, key_tokens))


def answer_page_keys(request: TraceRequest, key_tokens: int, page_size: int) -> tuple[int, ...]:
    """The same for the pages behind those that are full once the answer is there.

    The last token of an answer is never computed, so it fills none.
    """
    if not request.answer_keys or not key_tokens:
        return ()
    keys = request.keys[: request.prompt_tokens // key_tokens] + list(request.answer_keys)
    first = (_keyed(request, key_tokens) // page_size + 1) * page_size
    last = min(request.prompt_tokens + request.output_tokens - 1, len(keys) * key_tokens)
    return tuple(_paged(keys, key_tokens, page_size, first, last))


def _keyed(request: TraceRequest, key_tokens: int) -> int:
    """How many tokens of its prompt its keys speak of; all of them where there are none, as it then shares no page."""
    return min(request.prompt_tokens, len(request.keys) * key_tokens) if request.keys else request.prompt_tokens


def _paged(keys: list[int], key_tokens: int, page_size: int, first: int, last: int) -> list[int]:
    """Keys of the pages that end at ``first`` and, page by page, not beyond ``last``."""
    if page_size == key_tokens:
        return keys[first // page_size - 1 : last // page_size]
    per_key = key_tokens // page_size + 2
    return [
        keys[(end - 1) // key_tokens] * per_key + (end - 1) % key_tokens // page_size
        for end in range(first, last + 1, page_size)
    ]


def _uniform(seed: int, name: str) -> int:
    """A number below 2^64 for a name, the same on every machine."""
    return int.from_bytes(blake2b(name.encode(), key=seed.to_bytes(8), digest_size=8).digest())


def _all_moved(requests: Sequence[TraceRequest], move: Callable[[int], int]) -> list[TraceRequest]:
    """``move`` gives the new time of those who follow nobody; a follower keeps its distance to the latest of those whom
    it follows."""
    made: list[TraceRequest] = []
    for each in requests:
        if each.after:
            latest = max(each.after, key=lambda place: requests[place - 1].arrival_ns) - 1
            arrival_ns = made[latest].arrival_ns + each.arrival_ns - requests[latest].arrival_ns
        else:
            arrival_ns = move(each.arrival_ns)
        made.append(_moved(each, arrival_ns))
    return made


def _moved(request: TraceRequest, arrival_ns: int) -> TraceRequest:
    change_ns = arrival_ns - request.arrival_ns
    return msgspec.structs.replace(
        request,
        arrival_ns=arrival_ns,
        cancel_ns=request.cancel_ns and request.cancel_ns + change_ns,
        expires_ns=request.expires_ns and request.expires_ns + change_ns,
    )


def _kept(workload: Workload, places: Sequence[int], note: str) -> Workload:
    """The requests at ``places``, which ascend from 0."""
    return _derived(workload, part(workload.requests, places), note)


def _derived(workload: Workload, requests: Iterable[TraceRequest], note: str) -> Workload:
    return msgspec.structs.replace(workload, requests=list(requests), notes=[*workload.notes, note])
