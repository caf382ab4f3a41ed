"""The roofline model: its laws, its catalogue, its sums worked by hand, and what others measured."""

from __future__ import annotations

from fractions import Fraction
from statistics import median

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.core.config import CostConfig
from stepwell.core.errors import UserError
from stepwell.core.protocols import BatchShape
from stepwell.core.registry import make_cost_model, whole_options
from stepwell.core.testing_cost import COUNTS, counts, never_less, runs_are_steps, shapes
from stepwell.sim.cost.devices import DEVICES
from stepwell.sim.cost.models import MODELS
from stepwell.sim.cost.parallel import traffic
from stepwell.sim.cost.published import PUBLISHED
from stepwell.sim.cost.reach import reach_of
from stepwell.sim.cost.roofline import FS_PER_NS, Roofline
from stepwell.sim.cost.room import measure, pages_left
from stepwell.sim.cost.setup import RooflineOptions, resolve

SETUPS = [
    RooflineOptions(),
    RooflineOptions(device="L4", model="smollm2-135m", kv="fp8"),
    RooflineOptions(device="A100-40", model="mistral-7b", weights="int4"),
    RooflineOptions(device="H200", model="llama-3-70b", tensor_parallel=8, weights="fp8"),
    RooflineOptions(device="B200", model="llama-3-405b", tensor_parallel=8, pipeline_parallel=2),
    RooflineOptions(device="MI300X", model="mixtral-8x7b", expert_parallel=4),
    RooflineOptions(device="H200", model="deepseek-v3", weights="fp8", tensor_parallel=2, expert_parallel=8),
    RooflineOptions(device="H100", model="qwen-3-30b-a3b", weights="int8", tensor_parallel=2, expert_parallel=2),
]
MADE = [Roofline(each) for each in SETUPS]
made = st.sampled_from(MADE)


# ------------------------------------------------------------------------------------------------ laws


@given(made, shapes, st.sampled_from(COUNTS), counts)
@settings(max_examples=400)
def test_si_5_more_of_anything_never_takes_less(model: Roofline, shape: BatchShape, name: str, more: int) -> None:
    never_less(model, shape, name, more)


@given(made, shapes, st.integers(0, 10**15), st.integers(0, 40), st.integers(-10, 10**11))
def test_si_5_a_run_equals_its_steps(
    model: Roofline, shape: BatchShape, start_ns: int, steps: int, ahead_ns: int
) -> None:
    runs_are_steps(model, shape, start_ns, steps, ahead_ns)


@given(made, shapes)
def test_the_parts_of_a_step_are_the_step(model: Roofline, shape: BatchShape) -> None:
    parts = model.parts(shape)
    assert sum(part.fs for part in parts) // FS_PER_NS == model.step_ns(shape)
    assert all(part.fs >= 0 for part in parts)


@pytest.mark.parametrize("model", [each for each in MADE if each.coefficients.experts], ids=lambda it: it.options.model)
def test_experts_touched_are_the_mean_of_independent_draws(model: Roofline) -> None:
    """B tokens touch E·(1 − (1 − k/E)^B) of E experts; all of them in the end."""
    experts = model.setup.model.experts
    assert experts is not None
    times, count = model.coefficients.experts, experts.experts
    assert times[0] == 0
    assert times == sorted(times)
    one = Fraction(times[1], experts.active)
    for tokens in (1, 2, 3, 7, 40):
        expected = count * (1 - (1 - Fraction(experts.active, count)) ** tokens) * one
        assert abs(times[tokens] - expected) <= count
    assert times[-1] >= count * one * Fraction(999, 1000)


def test_nothing_of_it_was_measured() -> None:
    assert reach_of(Roofline()) is None


# ------------------------------------------------------------------------------------------------ catalogue


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_parameters_are_those_that_its_authors_state(model: object) -> None:
    it = MODELS[getattr(model, "name")]  # noqa: B009 - parametrize gives objects
    assert it.published > 0
    assert abs(it.parameters - it.published) <= it.published // 50
    assert it.active_parameters <= it.parameters
    assert it.source.startswith("https://huggingface.co/")


def test_active_parameters_are_those_in_the_names() -> None:
    billions = {
        "qwen-3-30b-a3b": 3.3,
        "qwen-3-235b-a22b": 22,
        "mixtral-8x7b": 12.9,
        "mixtral-8x22b": 39,
        "deepseek-v3": 37,
    }
    for name, told in billions.items():
        assert MODELS[name].active_parameters / 1e9 == pytest.approx(told, rel=0.02), name


@pytest.mark.parametrize("name", DEVICES)
def test_devices_say_where_their_numbers_come_from(name: str) -> None:
    it = DEVICES[name]
    assert it.source
    assert it.operations["bf16"] < it.operations["int8"]
    assert it.link >= it.host // 2 > 0
    assert 10**11 < it.bandwidth < it.operations["bf16"] // 50
    assert 20 << 30 < it.memory < 256 << 30


def test_every_model_is_predicted_on_every_device_that_holds_it() -> None:
    """Larger devices of one maker are never slower."""
    shape = BatchShape(decode_requests=16, kv_tokens=16_000)
    for name in MODELS:
        times = {}
        for device in ("A100-80", "H100", "H200", "B200"):
            options = RooflineOptions(device=device, model=name, weights="fp8", tensor_parallel=1, utilisation=1.0)
            try:
                times[device] = Roofline(options).step_ns(shape)
            except UserError:
                continue
        assert list(times.values()) == sorted(times.values(), reverse=True), name


# ------------------------------------------------------------------------------------------------ by hand


BARE = RooflineOptions(
    model="llama-3-8b",
    bandwidth_share=1.0,
    compute_share=1.0,
    step_overhead_ns=1,
    layer_overhead_ns=0,
    request_overhead_ns=0,
)


def test_one_request_reads_the_weights_and_its_kv() -> None:
    """7.5 billion parameters of two bytes, and 1,000 + 1 positions of 128 KiB, at 3.35 TB/s, and a microsecond."""
    model = MODELS["llama-3-8b"]
    read = 2 * (model.parameters - model.head_parameters) + 1_001 * 2 * 32 * 8 * 128 * 2
    moved = 32 * (8 * 4096 + 2 * 40 * 128 + 3 * 14_336) * 2
    expected_ns = (read + moved) / 3350
    assert Roofline(BARE).step_ns(BatchShape(decode_requests=1, kv_tokens=1_000)) == pytest.approx(expected_ns, abs=5)


def test_a_long_prompt_is_bound_by_arithmetic() -> None:
    tokens = 8_192
    shape = BatchShape(prefill_tokens=tokens, prefill_requests=1, prefill_pairs=tokens * (tokens + 1) // 2)
    parts = {part.name: part for part in Roofline(BARE).parts(shape)}
    model = MODELS["llama-3-8b"]
    assert parts["linear"].bound == parts["attention"].bound == "compute"
    assert parts["linear"].fs == pytest.approx(2 * model.linear_parameters * tokens / 0.9894, rel=1e-6)
    pairs = shape.prefill_pairs * 4 * 32 * 128 * 32
    written = parts["attention"].fs - pairs / 0.9894
    assert written == pytest.approx(tokens * 131_072 / 3.35e-3, rel=1e-3)
    assert parts["output"].bound == "memory"


def test_precisions_change_what_is_read_and_what_is_computed() -> None:
    one, many = BatchShape(decode_requests=1), BatchShape(prefill_tokens=8_192)

    def linear(shape: BatchShape, **changed: object) -> int:
        return Roofline(msgspec.structs.replace(BARE, **changed)).parts(shape)[0].fs

    assert linear(one, weights="fp8") == pytest.approx(linear(one) / 2, rel=1e-6)
    assert linear(one, weights="int4") == pytest.approx(linear(one) * 133 / 512, rel=1e-6)
    assert linear(many, weights="fp8") == pytest.approx(linear(many) / 2, rel=1e-3)
    assert linear(many, weights="int4") == linear(many), "expanded to bf16"
    assert linear(many, weights="fp8", device="A100-80") == linear(many, device="A100-80"), "it has no fp8"


def test_a_ring_moves_twice_what_it_reduces() -> None:
    """Two all-reduces in each of 80 layers, over 8 devices: 14 hops each; a vector is 16 KiB."""
    sent = traffic(resolve(RooflineOptions(model="llama-3-70b", tensor_parallel=8)))
    assert sent.token_bytes == Fraction(160 * 14 * 16_384, 8)
    assert sent.hops_ns == 160 * 14 * 1_000
    assert sent.row_bytes == Fraction(7 * 128_256 * 2, 8)


def test_experts_are_sent_to_and_back() -> None:
    """Mixtral over four devices: two experts a token there and back, three quarters of them elsewhere."""
    sent = traffic(resolve(RooflineOptions(model="mixtral-8x7b", device="MI300X", expert_parallel=4)))
    assert sent.token_bytes == 32 * 2 * 2 * 8_192 * Fraction(3, 4)
    assert sent.hops_ns == 32 * 2 * 3 * DEVICES["MI300X"].link_ns


def test_latent_attention_keeps_a_hundredth_of_what_its_heads_would() -> None:
    """576 numbers a token and layer (DeepSeek-V3, section 2.1.1), however many devices share the heads."""
    setup = resolve(RooflineOptions(model="deepseek-v3", device="H200", tensor_parallel=8, weights="fp8"))
    assert setup.kv_bytes == 61 * 576 * 2


def test_swap_goes_over_the_host_link_page_by_page() -> None:
    part = {part.name: part for part in Roofline(BARE).parts(BatchShape(swap_pages=10))}["swap"]
    assert part.bound == "host"
    assert part.fs == pytest.approx(10 * 16 * 131_072 / (64 * 0.8) * 1e6, rel=1e-6)


# ------------------------------------------------------------------------------------------------ room


def test_pages_are_what_the_weights_leave() -> None:
    """0.9 of 81,559 MiB, less 2 GiB and 8.03 billion parameters of two bytes, in pages of 2 MiB."""
    left = (81_559 << 20) * 9 // 10 - (2 << 30) - 2 * (MODELS["llama-3-8b"].parameters)
    assert abs(pages_left(RooflineOptions()) - left // (2 << 20)) <= 1


def test_a_published_pool_is_predicted() -> None:
    """The H100 of silybench held 92 requests of 4,096 tokens of Qwen3-8B in bf16 and 105 with fp8 weights."""
    for weights, tokens in (("bf16", 92 * 4096), ("fp8", 105 * 4096)):
        room = measure(resolve(RooflineOptions(model="qwen-3-8b", weights=weights)))  # type: ignore[arg-type]
        assert room.tokens == pytest.approx(tokens, rel=0.1)


def test_what_does_not_fit_is_refused_with_the_sum() -> None:
    with pytest.raises(UserError, match=r"131\.\d GiB of bf16 weights.*tensor_parallel = 2 would do") as caught:
        make_cost_model(CostConfig(model="roofline", options={"model": "llama-3-70b"}))
    assert caught.value.field == "cost.options.model"
    whole = Roofline(RooflineOptions(model="llama-3-70b", tensor_parallel=2))
    assert whole.room.pages > 0


def test_stages_share_the_layers() -> None:
    one, two = (
        measure(resolve(RooflineOptions(model="llama-3-70b", tensor_parallel=4, pipeline_parallel=stages)))
        for stages in (1, 2)
    )
    assert two.weights == pytest.approx(one.weights / 2, rel=1e-9)
    assert two.kv_token * 2 == one.kv_token


# ------------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"device": "H10"}, "unknown device 'H10'; did you mean 'H100'"),
        ({"model": "llama-3-9b"}, "did you mean 'llama-3-8b'"),
        ({"tensor_parallel": 3}, "cannot share 32 heads evenly"),
        ({"expert_parallel": 2}, "llama-3-8b has no experts"),
        ({"model": "mixtral-8x7b", "tensor_parallel": 2, "expert_parallel": 8}, "has 8 experts, which 16 devices"),
        ({"pipeline_parallel": 33}, "33 stages are more than the 32 layers"),
        ({"weights": "fp7"}, "weights"),
        ({"bandwidth_share": 1.5}, "bandwidth_share"),
        ({"step_overhead_ns": 0}, "step_overhead_ns"),
        ({"speed": 1}, "unknown key 'speed'"),
    ],
)
def test_impossible_options_are_refused_by_name(options: dict[str, object], told: str) -> None:
    with pytest.raises(UserError, match=told) as caught:
        make_cost_model(CostConfig(model="roofline", options=options))
    assert caught.value.field.startswith("cost.options.")


def test_a_device_and_a_model_may_be_given_as_tables() -> None:
    """They survive being written into a journal, and predict what the catalogue's entries do."""
    options = {"device": msgspec.to_builtins(DEVICES["A100-80"]), "model": msgspec.to_builtins(MODELS["deepseek-v3"])}
    options |= {"weights": "int4", "tensor_parallel": 8}
    again = msgspec.json.decode(msgspec.json.encode(whole_options("cost_models", "roofline", options)))
    named = Roofline(RooflineOptions(device="A100-80", model="deepseek-v3", weights="int4", tensor_parallel=8))
    shape = BatchShape(100, 20, 30_000, 1, 1, 1, 5_050)
    assert make_cost_model(CostConfig(model="roofline", options=again)).step_ns(shape) == named.step_ns(shape)


# ------------------------------------------------------------------------------------------------ published


def test_published_steps_of_a_present_engine_are_predicted() -> None:
    """Dense models under vLLM 0.21 to 0.30, points that chose defaults left out: docs/cost_models.md tells the rest."""
    present = [each for each in PUBLISHED if each.present and each.decode_requests and not each.fitted]
    assert len(present) >= 25
    off = [abs(each.deviation) for each in present]
    assert max(off) < 0.09
    assert median(off) < 0.02


def test_whatever_else_was_published_takes_longer_than_the_roof() -> None:
    """Prompts, sparse models and older engines: the model is optimistic there, and never by more than three times."""
    others = [each for each in PUBLISHED if not (each.present and each.decode_requests)]
    assert len(others) >= 10
    assert all(-0.67 < each.deviation < 0.03 for each in others), [(each.model, each.deviation) for each in others]
