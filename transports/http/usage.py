"""What an answer cost, in tokens and in time."""

from __future__ import annotations

from typing import Any

from stepwell.core.types import NS_PER_MS, NS_PER_S
from stepwell.transports.generation import Generation

Json = dict[str, Any]


def reasoning_tokens(generation: Generation) -> int:
    """Of all choices."""
    return sum(choice.reading.reasoning_tokens for choice in generation.choices if choice.reading is not None)


def usage_of(generation: Generation) -> Json:
    """Once a request, however many choices it has."""
    prompt, completion, cached = generation.usage
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens(generation)},
    }


def metrics_of(generation: Generation, policy: str) -> Json:
    """In vLLM's names and ours: of the choice that was slowest to begin, and of all from first token to last."""
    times = generation.times
    queue_ns = max(each.admitted_ns - each.arrived_ns for each in times)
    first_ns = max(each.first_ns - each.arrived_ns for each in times)
    spent_ns = max(max(each.ended_ns for each in times) - min(each.first_ns for each in times), 0)
    gaps = sum(choice.tokens for choice in generation.choices) - len(times)
    known = gaps > 0 and spent_ns > 0
    return {
        "time_to_first_token_ms": _ms(first_ns),
        "generation_time_ms": _ms(spent_ns),
        "queue_time_ms": _ms(queue_ns),
        "mean_itl_ms": _ms(len(times) * spent_ns / gaps) if known else None,
        "tokens_per_second": round(gaps * NS_PER_S / spent_ns, 3) if known else None,
        "preemptions": sum(choice.preemptions for choice in generation.choices),
        "policy": policy,
        "step_count": max(each.steps for each in times),
    }


def _ms(ns: float) -> float:
    return round(ns / NS_PER_MS, 3)
