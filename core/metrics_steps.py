"""Steps: what they compute, how long they take, how long it took to decide on them, and how well that was foreseen.

A run of steps that compute the same is counted by one addition each; their histograms are brought up to date when
something else is computed, or somebody looks.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from stepwell.core.metrics_families import Families, by_one
from stepwell.core.metrics_histogram import DECISION, ITL, SHARES, STEP, TOKENS, Histogram
from stepwell.core.speeds import Speeds
from stepwell.core.types import NS_PER_S

MOST_POLICIES = 32
"""Names of policies that have a label of their own; those beyond are ``other``."""

OTHER = "other"


class Foresight:
    """How far a guess was off, and what guesses and truth come to in all."""

    def __init__(self) -> None:
        self.off = Histogram(ITL)
        self.predicted_ns = self.actual_ns = 0

    def judge(self, predicted_ns: int, actual_ns: int) -> None:
        self.off.add(abs(predicted_ns - actual_ns) / NS_PER_S)
        self.predicted_ns += predicted_ns
        self.actual_ns += actual_ns


class StepMetrics:
    """``token_budget`` is what a step may compute; 0: nobody knows, and no share of it is counted."""

    def __init__(self, token_budget: int, policy: str, page_size: int) -> None:
        self.launched = self.failed = 0
        self.tokens, self.prefill, self.decode = Histogram(TOKENS), Histogram(TOKENS), Histogram(TOKENS)
        self.used = Histogram(SHARES)
        self.seconds = {phase: Histogram(STEP) for phase in ("prefill", "decode", "mixed")}
        self.decisions = {policy: Histogram(DECISION)}
        self.foresight = Foresight()
        """Of steps with prompt tokens, by what steps before them took."""
        self._deciding = self.decisions[policy]
        self._budget = token_budget
        self._speeds = Speeds(max(page_size, 1))
        self._shape = (-1, -1)
        self._same = 0

    def launch(self, prefill: int, decode: int) -> None:
        """A step begins, of so many prompt tokens and of so many requests that decode."""
        if self._shape == (prefill, decode):
            self._same += 1
            return
        self.settle()
        self._shape, self._same = (prefill, decode), 1

    def settle(self) -> None:
        """Bring the histograms up to date."""
        same, (prefill, decode) = self._same, self._shape
        if not same:
            return
        self._same = 0
        self.launched += same
        self.tokens.add(prefill + decode, same)
        self.prefill.add(prefill, same)
        self.decode.add(decode, same)
        if self._budget:
            self.used.add((prefill + decode) / self._budget, same)

    def done(self, prefill: int, decode: int, pages: int, elapsed_ns: int, copy_ns: int) -> None:
        """A step of this shape, which copied ``pages``, took so long.  0: that was not measured."""
        if elapsed_ns <= 0:
            return
        if not prefill and not pages:
            self._speeds.decode_ns = elapsed_ns
            self.seconds["decode"].add(elapsed_ns / NS_PER_S)
            return
        speeds = self._speeds
        if prefill:
            predicted_ns = prefill * speeds.token_ps // 1000 + pages * speeds.page_ns
            self.foresight.judge(predicted_ns + (speeds.decode_ns if decode else 0), elapsed_ns)
        phase = ("mixed" if decode else "prefill") if prefill else "decode"
        self.seconds[phase].add(elapsed_ns / NS_PER_S)
        speeds.learn(prefill, pages, decode > 0, elapsed_ns, copy_ns)

    def decided(self, took_ns: int) -> None:
        """The scheduler took so long over one batch of events."""
        self._deciding.add(took_ns / NS_PER_S)

    def use_policy(self, name: str) -> None:
        """From here on it is somebody else's time."""
        if name not in self.decisions and len(self.decisions) >= MOST_POLICIES:
            name = OTHER
        self._deciding = self.decisions.setdefault(name, Histogram(DECISION))

    def collect(self, make: Families, waits: Foresight) -> Iterable[Metric]:
        """``waits``: of the waiting line."""
        self.settle()
        yield make.counter("stepwell:steps", "Steps launched.", self.launched)
        yield make.counter("stepwell:steps_failed", "Steps that produced nothing.", self.failed)
        yield make.histogram("vllm:iteration_tokens_total", "Tokens computed in a step.", self.tokens)
        yield make.histogram("stepwell:batch_prefill_tokens", "Prompt tokens computed in a step.", self.prefill)
        yield make.histogram("stepwell:batch_decode_tokens", "Requests that decode in a step.", self.decode)
        yield make.histogram("stepwell:budget_utilization", "Share of the token budget that a step uses.", self.used)
        yield make.histograms("stepwell:step_seconds", "Time of a step on the device.", "phase", self.seconds)
        yield make.histograms(
            "stepwell:decision_seconds", "Time of the scheduler over a batch of events.", "policy", self.decisions
        )
        both = {"step": self.foresight, "wait": waits}
        yield make.histograms(
            "stepwell:predicted_vs_actual_seconds",
            "How far off a prediction was.",
            "of",
            {of: each.off for of, each in both.items()},
        )
        for word in ("predicted", "actual"):
            sums = {of: getattr(each, f"{word}_ns") / NS_PER_S for of, each in both.items()}
            yield make.counters(f"stepwell:{word}_seconds", f"What was {word}, in all.", ["of"], by_one(sums))
