"""What is counted of requests, and what is known of one that has not ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from prometheus_client.metrics_core import Metric

from stepwell.core.metrics_families import Families
from stepwell.core.metrics_histogram import E2E, FEW, ITL, TOKENS, TTFT, Histogram
from stepwell.core.metrics_tenants import Row
from stepwell.core.types import NS_PER_S, RequestId

SECONDS = {
    "time_to_first_token_seconds": ("Arrival to first token.", TTFT),
    "inter_token_latency_seconds": ("Gap between two tokens of one request.", ITL),
    "request_time_per_output_token_seconds": ("(last - first) / (n - 1), one value a request.", ITL),
    "e2e_request_latency_seconds": ("Arrival to end, of requests that were answered.", E2E),
    "request_queue_time_seconds": ("Arrival to first admission.", E2E),
    "request_prefill_time_seconds": ("First admission to first token.", E2E),
    "request_decode_time_seconds": ("First token to end, of requests that were answered.", E2E),
    "request_inference_time_seconds": ("First admission to end, of requests that were answered.", E2E),
}
COUNTS = {
    "request_prompt_tokens": ("Prompt tokens of a request.", TOKENS),
    "request_generation_tokens": ("Tokens of the answer.", TOKENS),
    "request_num_preemptions": ("How often a request was preempted.", FEW),
}
REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "expired": "abort", "error": "error"}
"""The field's word for each end; a waiting request that the policy rejected counts under ``admission_rejections``."""

NEVER = ("repetition",)
"""Ends that the field counts and that there are none of here."""


class Live(msgspec.Struct, gc=False):
    """A request that has not ended.  ``last_ns`` is when it sampled last, unless it is in the group; -1 is not yet.

    ``given`` is its tenant's row; ``foreseen_ns`` how long it was guessed to wait when it arrived (0: nobody knew).
    """

    arrival_ns: int
    prompt_tokens: int
    max_tokens: int
    parent: RequestId
    klass: str
    given: Row
    foreseen_ns: int = 0
    admitted_ns: int = -1
    first_ns: int = -1
    last_ns: int = 0
    preemptions: int = 0
    running: bool = False
    stands: bool = False
    """Its prompt has been computed, and it was on the device when that was known: choices of it wait no more."""
    dropped: bool = False
    """It was sent away and is to be computed again."""


def request_histograms() -> dict[str, Histogram]:
    """Empty ones, by name."""
    return {name: Histogram(buckets) for name, (_, buckets) in (SECONDS | COUNTS).items()}


def request_families(make: Families, histograms: Mapping[str, Histogram]) -> Iterable[Metric]:
    """What they hold, for a scraper."""
    for name, (text, _) in (SECONDS | COUNTS).items():
        yield make.histogram(f"vllm:{name}", text, histograms[name])


def left_ns(live: Live, gaps: Histogram, now_ns: int) -> int:
    """A guess how long one that runs still will: as long again, or less if it may not say so much more at the present
    time per token.  At least 1 if that is known."""
    age_ns = now_ns - live.admitted_ns
    if not gaps.count:
        return age_ns
    most_ns = int(live.max_tokens * gaps.sum / gaps.count * NS_PER_S) - age_ns
    return max(min(age_ns, most_ns), 1)
