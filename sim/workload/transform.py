"""Workloads made from workloads.  Each function leaves its argument as it is and notes what it did."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import msgspec

from stepwell.core.errors import UserError
from stepwell.sim.workload.request import TraceRequest, Workload


def scale_rate(workload: Workload, factor: float) -> Workload:
    """Requests arrive ``factor`` times as fast: every arrival time divided by it, exactly, and rounded down.

    How long a client waits before it leaves does not change.
    """
    if not 1e-9 <= factor <= 1e9:
        raise UserError(f"must be between 1e-9 and 1e9, not {factor!r}", field="factor")
    ratio = Fraction(factor)
    above, below = ratio.denominator, ratio.numerator
    moved = [_moved(request, request.arrival_ns * above // below) for request in workload.requests]
    return _derived(workload, moved, f"rate multiplied by {factor:g}")


def shift_to_zero(workload: Workload) -> Workload:
    """The first request arrives at 0."""
    origin_ns = workload.requests[0].arrival_ns if workload.requests else 0
    moved = [_moved(request, request.arrival_ns - origin_ns) for request in workload.requests]
    return _derived(workload, moved, f"shifted by {-origin_ns} ns")


def all_at_once(workload: Workload) -> Workload:
    """Every request arrives at 0, in the same order: what a device completes then is all that it can."""
    return _derived(workload, [_moved(each, 0) for each in workload.requests], "all arrive at once")


def limit(workload: Workload, count: int, skip: int = 0) -> Workload:
    """``count`` requests after the first ``skip``; a slow start of a trace need not be what is measured."""
    if count < 1 or skip < 0:
        raise UserError(f"must keep at least 1 and skip at least 0, not {count} and {skip}", field="limit")
    kept = workload.requests[skip : skip + count]
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
        if (prompt, output) != (request.prompt_tokens, request.output_tokens):
            changed += 1
            request = msgspec.structs.replace(request, prompt_tokens=prompt, output_tokens=output, keys=keys)
        clipped.append(request)
    return _derived(workload, clipped, f"{changed} requests clipped to prompt {max_prompt}, output {max_output}")


def page_keys(request: TraceRequest, key_tokens: int, page_size: int) -> list[int]:
    """Identity of each *full* page of the prompt, from the request's keys; empty if it has none.

    A key stands for ``key_tokens`` tokens and all before them, so its pages are told apart by their place in it.
    Where pages do not divide the keys evenly, a page takes the key in which it ends.
    """
    if not request.keys or not key_tokens:
        return []
    per_key = key_tokens // page_size + 2
    keys = request.keys
    return [
        keys[(end - 1) // key_tokens] * per_key + (end - 1) % key_tokens // page_size
        for end in range(page_size, request.prompt_tokens + 1, page_size)
    ]


def _moved(request: TraceRequest, arrival_ns: int) -> TraceRequest:
    cancel_ns = request.cancel_ns and request.cancel_ns - request.arrival_ns + arrival_ns
    return msgspec.structs.replace(request, arrival_ns=arrival_ns, cancel_ns=cancel_ns)


def _derived(workload: Workload, requests: Iterable[TraceRequest], note: str) -> Workload:
    return msgspec.structs.replace(workload, requests=list(requests), notes=[*workload.notes, note])
