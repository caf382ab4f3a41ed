"""Who decides, since when, and what went wrong with it: from events and instructions alone, as all metrics are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from stepwell.core.events import UsePolicy
from stepwell.core.instructions import PolicyFault


class PolicyRecord:
    """Takes in what concerns the policy.  Times are the engine's, in ns; 0: since it began."""

    def __init__(self) -> None:
        self.since_ns = 0
        self.why = ""
        """What the last change was for."""
        self.swaps = 0
        """Changes in all; ``fallbacks`` of them because the policy had broken a rule."""
        self.fallbacks = 0
        self.last_fault: PolicyFault | None = None
        self.fault_ns = 0
        self.stands_in = ""
        """The policy that took over from a broken one, while nobody has chosen another."""
        self._faults: dict[tuple[str, str], int] = {}
        self._broken = False

    @property
    def warning(self) -> str:
        """That somebody stands in for a policy that broke a rule, and for which; empty if all is well."""
        fault = self.last_fault
        if fault is None or not self.stands_in:
            return ""
        return f"policy {public_name(fault.policy)} broke the rule {fault.rule!r}; {self.stands_in} decides instead"

    def swapped(self, now_ns: int, event: UsePolicy) -> None:
        """Another policy decides.  The first change after a fault is the engine's own: nothing runs before it."""
        self.swaps += 1
        self.since_ns, self.why = now_ns, event.why
        self.fallbacks += self._broken
        self.stands_in, self._broken = event.name if self._broken else "", False

    def faulted(self, now_ns: int, fault: PolicyFault) -> None:
        """The policy broke a rule."""
        self.last_fault, self.fault_ns = fault, now_ns
        key = public_name(fault.policy), fault.rule
        self._faults[key] = self._faults.get(key, 0) + 1
        self._broken = True

    def collect(self, labels: Sequence[str]) -> Iterable[Metric]:
        """Families for a scraper; ``labels`` are the values of those that all of them have."""
        common = ["model_name", "engine"]
        faults = CounterMetricFamily(
            "stepwell:policy_faults", "Times that a policy broke a rule.", labels=[*common, "policy", "rule"]
        )
        for (policy, rule), count in self._faults.items():
            faults.add_metric([*labels, policy, rule], count)
        yield faults
        swaps = CounterMetricFamily("stepwell:policy_swaps", "Changes of policy while serving.", labels=[*common, "by"])
        swaps.add_metric([*labels, "operator"], self.swaps - self.fallbacks)
        swaps.add_metric([*labels, "fault"], self.fallbacks)
        yield swaps


def public_name(name: str) -> str:
    """Without the folders of a policy that is named by its file: whoever may scrape need not know them."""
    return name.rpartition("/")[2]
