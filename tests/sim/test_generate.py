"""Synthetic workloads: the same bytes everywhere, and the distributions that were asked for."""

from __future__ import annotations

import math
from statistics import NormalDist

import msgspec
import numpy as np
import pytest

from stepwell.core.errors import UserError
from stepwell.sim.workload import draws
from stepwell.sim.workload.builtin import BUILTIN, DEMO, builtin
from stepwell.sim.workload.generate import ClassMix, Synthetic, common_options, common_workload, generate
from stepwell.sim.workload.mixes import Lengths, TenantMix
from stepwell.sim.workload.rates import Arrivals

PLAIN = ClassMix(prompt=Lengths(495.0, 0.8, 4, 3000), output=Lengths(199.0, 0.7, 2, 1000))


def synthetic(**changes: object) -> Synthetic:
    return msgspec.structs.replace(Synthetic(Arrivals(10.0), (PLAIN,), count=20_000, seed=3), **changes)


# Recorded once; if one of these changes, every published result with the workload is of another workload.
GOLDEN = {
    "common 10k": "ed1d1c43a165d40448e8b7200a76f1b9ab3257fb490550140751755fd5dd4e11",
    "demo": "01680e14ebaed181c2066e06a7d9b12ce486675c86dfa55cb4a6e481e029c22f",
    "gamma 13": "528d2f8e4925eda042f95379c9700fd8f1b857dc452a1f0844c0e15e8b64dda1",
}


def test_golden_digests() -> None:
    found = {
        "common 10k": common_workload(10_000).digest(),
        "demo": builtin("demo").digest(),
        "gamma 13": generate(synthetic(arrivals=Arrivals(10.0, "gamma", 13.0))).digest(),
    }
    assert found == GOLDEN


def test_draws_are_what_they_are_named() -> None:
    u = np.concatenate([draws.uniforms(1, 2, 20_000), [2.0**-53, 1 - 2.0**-53, 0.5, 0.075, 0.925, 1e-12, 1e-9]])
    assert ((u > 0) & (u < 1)).all()
    normal = NormalDist()
    for x, log, z in zip(u.tolist(), draws.log(u).tolist(), draws.normals(u).tolist(), strict=True):
        assert log == pytest.approx(math.log(x), rel=1e-15)
        assert z == pytest.approx(normal.inv_cdf(x), rel=1e-13, abs=1e-13)
    powers = np.concatenate([np.linspace(-690, 690, 20_001), [-1e9, 1e9]])
    for x, e in zip(powers.tolist(), draws.exp(powers).tolist(), strict=True):
        assert e == pytest.approx(math.exp(max(min(x, 700.0), -700.0)), rel=1e-15)


def test_a_longer_workload_begins_with_the_shorter() -> None:
    assert common_workload(2_000).requests == common_workload(5_000).requests[:2_000]
    bursts = Arrivals(10.0, "gamma", 4.0)
    short, long = (generate(synthetic(arrivals=bursts, count=count)) for count in (1_000, 3_000))
    assert short.requests == long.requests[:1_000]


def test_the_rate_changes_times_only_and_the_seed_everything() -> None:
    base, faster = common_workload(1_000, load=0.45), common_workload(1_000, load=0.9)
    assert [(r.prompt_tokens, r.output_tokens) for r in base.requests] == [
        (r.prompt_tokens, r.output_tokens) for r in faster.requests
    ]
    assert base.requests[-1].arrival_ns == pytest.approx(2 * faster.requests[-1].arrival_ns, rel=1e-6)
    assert generate(synthetic(seed=4)).digest() != generate(synthetic(seed=3)).digest()


@pytest.mark.parametrize("cv", [0.3, 0.99, 1.0, 1.5, 4.0])
def test_gamma_arrivals_have_the_rate_and_cv_asked_for(cv: float) -> None:
    profile = generate(synthetic(arrivals=Arrivals(10.0, "gamma", cv), count=100_000)).profile()
    assert profile.gap_cv == pytest.approx(cv, rel=0.03)
    assert profile.rate_per_s == pytest.approx(10.0, rel=4 * cv / math.sqrt(100_000))


def test_gamma_draws_follow_the_gamma_distribution() -> None:
    """Against distribution functions with closed forms: shapes 1 and 2, and chi-squared (shape 1/2)."""
    closed = {
        1.0: lambda x: 1 - math.exp(-x),
        2.0: lambda x: 1 - (1 + x) * math.exp(-x),
        0.5: lambda x: math.erf(math.sqrt(x)),
    }
    count = 50_000
    for shape, cdf in closed.items():
        ordered = sorted(draws.gammas(5, 0, count, shape).tolist())
        distance = max(abs(cdf(x) - (rank + 0.5) / count) for rank, x in enumerate(ordered))
        assert distance < 1.63 / math.sqrt(count)  # Kolmogorov and Smirnov, 1 %


def test_poisson_arrivals_and_lognormal_lengths() -> None:
    free = ClassMix(prompt=Lengths(495.0, 0.8), output=Lengths(199.0, 0.7))
    workload = generate(synthetic(classes=(free,), count=100_000))
    assert workload.profile().gap_cv == pytest.approx(1.0, rel=0.02)
    assert workload.profile().rate_per_s == pytest.approx(10.0, rel=0.02)
    for column, mean, sigma in (("prompt_tokens", 495.0, 0.8), ("output_tokens", 199.0, 0.7)):
        values = [getattr(request, column) for request in workload.requests]
        logs = np.log(values)
        assert float(np.mean(values)) == pytest.approx(mean, rel=0.01)
        assert float(np.std(logs)) == pytest.approx(sigma, rel=0.01)
        assert float(np.mean(logs)) == pytest.approx(math.log(mean) - sigma * sigma / 2, abs=0.01)


def test_lengths_are_clipped() -> None:
    tight = ClassMix(prompt=Lengths(495.0, 0.8, 400, 600), output=Lengths(199.0, 0.0))
    requests = generate(synthetic(classes=(tight,))).requests
    assert {min(r.prompt_tokens for r in requests), max(r.prompt_tokens for r in requests)} == {400, 600}
    assert {r.output_tokens for r in requests} == {199}


def test_classes_and_tenants_get_their_shares_and_lengths() -> None:
    batch = ClassMix(name="batch", share=1.0, prompt=Lengths(2000.0, 0.1), output=Lengths(900.0, 0.1))
    chat = ClassMix(name="chat", share=3.0, prompt=Lengths(100.0, 0.1), output=Lengths(50.0, 0.1))
    tenants = (TenantMix("a", 0.6), TenantMix("b", 0.3), TenantMix("c", 0.1))
    requests = generate(synthetic(classes=(batch, chat), tenants=tenants)).requests
    assert sum(r.klass == "chat" for r in requests) / len(requests) == pytest.approx(0.75, abs=0.01)
    assert all((r.prompt_tokens > 500) == (r.klass == "batch") for r in requests)
    for tenant in tenants:
        assert sum(r.tenant == tenant.name for r in requests) / len(requests) == pytest.approx(tenant.share, abs=0.01)
    both = sum(r.tenant == "a" and r.klass == "chat" for r in requests) / len(requests)
    assert both == pytest.approx(0.45, abs=0.015)  # independent


def test_calls_of_a_program_take_turns_with_those_beside_it() -> None:
    chat = ClassMix(prompt=Lengths(5.0, 0.0), output=Lengths(5.0, 0.0), calls=2, abreast=3)
    requests = generate(synthetic(classes=(chat,), count=9)).requests
    assert [each.program for each in requests] == [f"chat-{index}" for index in (0, 1, 2, 0, 1, 2, 3, 4, 5)]
    batch = ClassMix(name="batch", prompt=Lengths(5.0, 0.0), output=Lengths(5.0, 0.0))
    requests = generate(synthetic(classes=(chat, batch), count=100)).requests
    assert {each.program for each in requests if each.klass == "batch"} == {""}
    for first in range(0, 20, 2):
        assert sum(each.program == f"chat-{first}" for each in requests) == 2


def test_the_common_workload_is_the_published_one() -> None:
    options = common_options(100_000, load=0.9)
    assert (options.seed, options.count, options.arrivals.kind) == (7, 100_000, "poisson")
    assert options.arrivals.rate_per_s == pytest.approx(25.6, rel=1e-12)
    assert common_options(load=0.3).arrivals.rate_per_s == pytest.approx(25.6 / 3, rel=1e-12)
    workload = common_workload(100_000)
    assert len(workload) == 100_000
    for column, least, most in (("prompt_tokens", 4, 3000), ("output_tokens", 2, 1000)):
        values = [getattr(request, column) for request in workload.requests]
        assert least <= min(values) < 5 * least
        assert max(values) == most


def test_the_demo_has_both_classes_and_bursts() -> None:
    workload = builtin("demo")
    assert len(workload) == 2_000
    assert {r.klass for r in workload.requests} == {"chat", "batch"}
    assert workload.profile().gap_cv > 3
    assert workload.profile().rate_per_s == pytest.approx(DEMO.arrivals.rate_per_s, rel=0.25)
    with pytest.raises(UserError, match=f"known|{', '.join(sorted(BUILTIN))}"):
        builtin("nope")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"count": 0}, "count"),
        ({"seed": -1}, "seed"),
        ({"arrivals": Arrivals(0.0)}, "arrivals.rate_per_s"),
        ({"arrivals": Arrivals(math.nan)}, "arrivals.rate_per_s"),
        ({"arrivals": Arrivals(1e-6), "count": 20_000}, "arrivals.rate_per_s"),
        ({"arrivals": Arrivals(1.0, "gamma", 0.0)}, "arrivals.cv"),
        ({"arrivals": Arrivals(1.0, "poisson", 2.0)}, "arrivals.cv"),
        ({"classes": ()}, "classes"),
        ({"classes": (PLAIN, PLAIN)}, "classes"),
        ({"tenants": ()}, "tenants"),
        ({"classes": (ClassMix(Lengths(5.0, 0.0), Lengths(5.0, 0.0), calls=-1),)}, r"classes\[0\].calls"),
        ({"classes": (ClassMix(Lengths(5.0, 0.0), Lengths(5.0, 0.0), abreast=0),)}, r"classes\[0\].abreast"),
        ({"tenants": (TenantMix("a", -1.0),)}, r"tenants\[0\].share"),
        ({"classes": (ClassMix(prompt=Lengths(0.5, 1.0), output=PLAIN.output),)}, r"classes\[0\].prompt.mean"),
        ({"classes": (ClassMix(prompt=Lengths(5.0, -1.0), output=PLAIN.output),)}, r"classes\[0\].prompt.sigma"),
        ({"classes": (ClassMix(prompt=PLAIN.prompt, output=Lengths(5.0, 1.0, 0, 9)),)}, r"classes\[0\].output"),
        ({"classes": (ClassMix(prompt=PLAIN.prompt, output=Lengths(5.0, 1.0, 9, 8)),)}, r"classes\[0\].output"),
    ],
)
def test_options_that_describe_no_workload_are_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(UserError, match=f"^{field}"):
        generate(synthetic(**changes))


def test_options_refuse_unknown_keys() -> None:
    with pytest.raises(msgspec.ValidationError, match="rate_per_m"):
        msgspec.convert({"arrivals": {"rate_per_s": 1.0, "rate_per_m": 2.0}, "classes": []}, Synthetic)
