"""Workloads made from workloads.  Each function leaves its argument as it is and notes what it did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import msgspec

from stepwell.core.errors import UserError
from stepwell.sim.workload.request import TraceRequest, Workload, part


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


def limit(workload: Workload, count: int, skip: int = 0) -> Workload:
    """``count`` requests after the first ``skip``; a slow start of a trace need not be what is measured."""
    if count < 1 or skip < 0:
        raise UserError(f"must keep at least 1 and skip at least 0, not {count} and {skip}", field="limit")
    kept = part(workload.requests, range(skip, min(skip + count, len(workload))))
    return _derived(workload, kept, f"requests {skip} to {skip + len(kept)} of {len(workload)}")


def clip(workload: Workload, *, max_prompt: int | None = None, max_output: int | None = None) -> Workload:
    """Longer prompts and outputs are cut to the limits; a cut prompt loses the keys beyond its end."""
    for field, value in (("max_prompt", max_prompt), ("max_output", max_output)):
        if value is not None and value < 1:
            raise UserError(f"must be at least 1, not {value}", field=field)
    clipped: list[TraceRequest] = []
    changed = 0
    for request in workload.requests:
        prompt = request.prompt_tokens if max_prompt is None else min(request.prompt_tokens, max_prompt)
        output = request.output_tokens if max_output is None else min(request.output_tokens, max_output)
        keys = request.keys
        if prompt < request.prompt_tokens:
            keys = keys[: -(-prompt // workload.key_tokens)] if workload.key_tokens else keys
        answer_keys = request.answer_keys if prompt == request.prompt_tokens else ()
        if (prompt, output) != (request.prompt_tokens, request.output_tokens):
            changed += 1
            request = msgspec.structs.replace(
                request, prompt_tokens=prompt, output_tokens=output, keys=keys, answer_keys=answer_keys
            )
        clipped.append(request)
    return _derived(workload, clipped, f"{changed} requests clipped to prompt {max_prompt}, output {max_output}")


def page_keys(request: TraceRequest, key_tokens: int, page_size: int) -> list[int]:
    """Identity of each *full* page of the prompt, from the request's keys; empty if it has none.

    A key stands for ``key_tokens`` tokens and all before them, so its pages are told apart by their place in it.
    Where pages do not divide the keys evenly, a page takes the key in which it ends.
    """
    if not request.keys or not key_tokens:
        return []
    return _paged(request.keys, key_tokens, page_size, page_size, request.prompt_tokens)


def answer_page_keys(request: TraceRequest, key_tokens: int, page_size: int) -> tuple[int, ...]:
    """The same for the pages behind those of the prompt that are full once the answer is there.

    The last token of an answer is never computed, so it fills none.
    """
    if not request.answer_keys or not key_tokens:
        return ()
    keys = request.keys[: request.prompt_tokens // key_tokens] + list(request.answer_keys)
    first = (request.prompt_tokens // page_size + 1) * page_size
    last = min(request.prompt_tokens + request.output_tokens - 1, len(keys) * key_tokens)
    return tuple(_paged(keys, key_tokens, page_size, first, last))


def _paged(keys: list[int], key_tokens: int, page_size: int, first: int, last: int) -> list[int]:
    """Keys of the pages that end at ``first`` and, page by page, not beyond ``last``."""
    if page_size == key_tokens:
        return keys[first // page_size - 1 : last // page_size]
    per_key = key_tokens // page_size + 2
    return [
        keys[(end - 1) // key_tokens] * per_key + (end - 1) % key_tokens // page_size
        for end in range(first, last + 1, page_size)
    ]


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
    cancel_ns = request.cancel_ns and request.cancel_ns - request.arrival_ns + arrival_ns
    return msgspec.structs.replace(request, arrival_ns=arrival_ns, cancel_ns=cancel_ns)


def _derived(workload: Workload, requests: Iterable[TraceRequest], note: str) -> Workload:
    return msgspec.structs.replace(workload, requests=list(requests), notes=[*workload.notes, note])
