"""``chat-batch`` and ``conserve``: chat as if it were alone, and batch fills what it leaves.

The device is the simulator's reference cost model (6 ms a step, 30 µs a prompt token, 20 µs an answer and 60 ns for
each position that it reads) with 8,192 pages of 16 and 2,048 tokens a step.  The load: four chat requests a second for
two minutes (Poisson, seed 3; prompts of 1,155 tokens and answers of 211 on average, as in Azure's conversations of
2023), and 2,500 batch requests that are there from the start, more than are served in that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points

import pytest

from stepwell.core.types import NS_PER_S
from stepwell.sim.run import simulate
from stepwell.sim.workload.generate import ClassMix, Synthetic, generate
from stepwell.sim.workload.mixes import Lengths
from stepwell.sim.workload.rates import Arrivals
from stepwell.sim.workload.request import TraceRequest, Workload

UNTIL_NS = 120 * NS_PER_S
CHAT = ClassMix(name="chat", prompt=Lengths(1155.0, 0.9, 16, 8000), output=Lengths(211.0, 0.7, 2, 1000))
BATCH = ClassMix(name="batch", prompt=Lengths(700.0, 0.6, 64, 4000), output=Lengths(700.0, 0.6, 16, 2000))
BOUND = 1.2
"""Chat's p99 to the first token may be so many times that of chat alone."""


@cache
def chat() -> list[TraceRequest]:
    return generate(Synthetic(Arrivals(4.0), (CHAT,), count=480, seed=3)).requests


@cache
def batch() -> list[TraceRequest]:
    found = generate(Synthetic(Arrivals(1e6), (BATCH,), count=2500, seed=5)).requests
    return [TraceRequest(0, it.prompt_tokens, it.output_tokens, "batch", cancel_ns=UNTIL_NS) for it in found]


@cache
def played(policy: str, *, alone: bool = False) -> tuple[float, int]:
    """Chat's p99 to the first token (ms), and the tokens that batch was given, prompts of begun answers included."""
    requests = chat() if alone else sorted([*batch(), *chat()], key=lambda it: it.arrival_ns)
    result = simulate(overrides=[f"scheduler.policy={policy}"], workload=Workload("chat beside batch", requests))
    done = [it for it in result.metrics.requests.values() if it.klass == "batch" and it.tokens]
    p99 = next(it for it in result.summary.classes if it.name == "chat").ttft_ms.p99
    assert p99 is not None
    return p99, sum(it.prompt_tokens + it.tokens for it in done)


def best_within_the_bound(policies: Sequence[str], bound_ms: float) -> int:
    return max(tokens for p99, tokens in map(played, policies) if p99 <= bound_ms)


@pytest.mark.parametrize("policy", ["chat-batch", "conserve"])
def test_chat_s_first_tokens_are_as_soon_as_without_batch(policy: str) -> None:
    alone_ms, _ = played("chat-batch", alone=True)
    p99_ms, tokens = played(policy)
    assert p99_ms <= BOUND * alone_ms
    assert tokens >= 0.85 * best_within_the_bound(["chat-batch", "conserve"], BOUND * alone_ms)
    assert played("fcfs")[0] > 100 * alone_ms


@pytest.mark.slow
def test_batch_gets_what_any_policy_would_give_it_within_chat_s_bound() -> None:
    """Every registered policy is tried."""
    bound_ms = BOUND * played("chat-batch", alone=True)[0]
    policies = sorted(entry.name for entry in entry_points(group="stepwell.policies"))
    p99_ms, tokens = played("chat-batch")
    assert p99_ms <= bound_ms
    assert tokens >= 0.85 * best_within_the_bound(policies, bound_ms)
