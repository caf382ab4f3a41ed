"""VTC, Figure 3(a): the difference of service between two clients that both ask for more than they can have.

    python -m stepwell.examples.experiments.fair_tenants --picture vtc.png

Service is a token for a prompt token and two for an output token, as the paper counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core.types import NS_PER_S
from stepwell.examples.experiments.setup import Arm, Point, Setup, Side
from stepwell.examples.experiments.show import Experiment, main
from stepwell.examples.experiments.verdict import Quantity
from stepwell.sim.cost.architecture import GroupedQuery, LanguageModel
from stepwell.sim.cost.devices import Device
from stepwell.sim.run import Result
from stepwell.sim.workload.request import TraceRequest, Workload

SECONDS = 360
UNTIL_S = 480
"""Both still have requests in line, as more came than were served."""
RATES = {"one": 1.5, "two": 3.0}
TOKENS = 256
POOL = 10_000
BOUND = 2 * max(TOKENS, 2 * POOL)
"""2 max(input price x longest prompt, output price x tokens of a batch): theorem 4.4."""

A10G = Device(
    name="A10G",
    memory=24 << 30,
    bandwidth=600 * 10**9,
    operations={"bf16": 70 * 10**12},
    link=32 * 10**9,
    host=32 * 10**9,
    source="AWS, EC2 G5 instances; NVIDIA A10G",
)
LLAMA_2 = LanguageModel(
    name="llama-2-7b",
    layers=32,
    hidden=4096,
    intermediate=11_008,
    vocabulary=32_000,
    attention=GroupedQuery(heads=32, kv_heads=32, head_dim=128),
    context=4096,
    source="https://huggingface.co/huggyllama/llama-7b/blob/main/config.json",
)
SETUP = Setup(
    cost={"device": A10G, "model": LLAMA_2, "utilisation": 1.0, "reserve_mib": 0},
    pages=POOL // 16,
)


def workload(seconds: float) -> Workload:
    """Evenly spaced requests of 256 and 256 tokens: 90 a minute of one client, 180 of the other."""
    requests = [
        TraceRequest(round(index * NS_PER_S / rate), TOKENS, TOKENS, tenant=name)
        for name, rate in RATES.items()
        for index in range(round(rate * seconds))
    ]
    return Workload("overload", requests)


def service(result: Result, tenant: str, at_ns: int) -> float:
    """Up to a time: prompts once admitted, outputs as if they came evenly from the first token to the last."""
    total = 0.0
    for each in result.metrics.requests.values():
        if each.tenant == tenant and each.admitted_ns and each.admitted_ns <= at_ns:
            total += each.prompt_tokens
            if each.first_token_ns <= at_ns:
                span_ns = max(1, each.last_token_ns - each.first_token_ns)
                total += 2 * each.tokens * min(1.0, (at_ns - each.first_token_ns) / span_ns)
    return total


def measure(seed: int, share: float, side: Side) -> list[Point]:
    result = SETUP.simulate(side.arms[0], workload(SECONDS * share))
    times_s = [UNTIL_S * share * part / 24 for part in range(1, 25)]
    gaps = [abs(service(result, "one", at := round(t * NS_PER_S)) - service(result, "two", at)) for t in times_s]
    return [Point(t, gap, gap / BOUND) for t, gap in zip(times_s, gaps, strict=True)]


def read(curves: Sequence[list[Point]]) -> list[float]:
    fair, unfair = ([point.y for point in each] for each in curves)
    in_500_s = unfair[-1] / curves[1][-1].x * 500
    return [in_500_s / 1e5, BOUND / max(fair), unfair[-1] / unfair[11], max(fair[:12]) / max(fair[12:])]


EXPERIMENT = Experiment(
    name="fair_tenants",
    paper="Sheng et al., Fairness in Serving Large Language Models, OSDI'24",
    figure="Figure 3(a), two overloaded clients",
    claim="under FCFS the difference of service grows with time, to 300,000 after 500 s; under VTC it stays small "
    "and within its bound",
    sides=(Side("vtc", (Arm(policy="vtc"),)), Side("fcfs", (Arm(policy="fcfs"),))),
    quantities=(
        Quantity(what="fcfs: the difference after 500 s, in 100,000", least=3.0, most=3.0),
        Quantity(what="vtc: its bound (40,000) over the greatest difference", least=1.0, most=1000.0, tolerance=1.0),
        Quantity(what="fcfs: the difference at the end over that at half time", least=2.0, most=2.0, tolerance=1.2),
        Quantity(
            what="vtc: the greatest difference of the first half over that of the second",
            least=1.0,
            most=1.0,
            tolerance=1.5,
            beyond=0.5,
        ),
    ),
    measure=measure,
    read=read,
    axes=("time, s", "difference of service"),
    limit=BOUND,
    seeded=False,
)

if __name__ == "__main__":
    main([EXPERIMENT], __doc__)
