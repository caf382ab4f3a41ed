"""The backend that takes the time of devices that are not there."""

from __future__ import annotations

from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.build import build_backend
from stepwell.core.config import Config, CostConfig, MemoryConfig, ModelConfig
from stepwell.core.errors import UserError
from stepwell.core.instructions import Launch
from stepwell.core.protocols import BatchShape
from stepwell.core.sampling import SamplingParams
from stepwell.core.words import TEXT, WordTokenizer
from stepwell.sim.cost.linear import Linear
from stepwell.sim.cost.roofline import Roofline
from stepwell.sim.cost.setup import RooflineOptions
from stepwell.sim.rehearsal import CostModelBackend
from stepwell.sim.run import simulate

WORDS = WordTokenizer()
Options = CostModelBackend.Options


def answer(backend: CostModelBackend, prompt: list[int], most: int, *, id: int = 1) -> list[int]:
    """What it says to one request alone, up to its end or ``most`` tokens."""
    said: list[int] = []
    result = backend.execute(Launch(1, slices=[(id, 0, len(prompt), True)]))
    step, joined = 1, [id]
    while True:
        said += [token for _, token in result.tokens]
        if result.ended or len(said) == most:
            return said
        step += 1
        result = backend.execute(Launch(step, decode=True, joined=joined))
        joined = []


def test_it_says_the_built_in_text_as_long_as_was_drawn() -> None:
    backend = CostModelBackend(Options(answer_tokens=30, answer_sigma=0.0))
    backend.admit(1, [5, 6, 7], 1000)
    said = answer(backend, [5, 6, 7], 1000)
    assert len(said) == 30
    assert TEXT.replace("\n", "").encode().startswith(WORDS.decode(said))


def test_it_may_say_the_prompt_instead() -> None:
    backend = CostModelBackend(Options(text="prompt", answer_tokens=5, answer_sigma=0.0))
    backend.admit(1, [5, 6, 7], 1000)
    assert answer(backend, [5, 6, 7], 1000) == [5, 6, 7, 5, 6]


def test_requests_may_ask_for_more() -> None:
    backend = CostModelBackend(Options(answer_tokens=5, answer_sigma=0.0))
    backend.admit(1, [1], 1000, SamplingParams(min_tokens=9))
    backend.admit(2, [1], 1000, SamplingParams(ignore_eos=True))
    assert len(answer(backend, [1], 1000, id=1)) == 9
    backend.release(1)
    assert len(answer(backend, [1], 50, id=2)) == 50


def test_lengths_are_lognormal_around_their_mean_and_keyed_by_request() -> None:
    """However requests are mixed, number 7's answer is as long."""
    lengths = {}
    for id in range(1, 401):
        backend = CostModelBackend(Options(answer_tokens=100, answer_sigma=0.5, seed=3))
        backend.admit(id, [1], 1000)
        lengths[id] = backend._lengths[id]
        backend.release(id)
    assert mean(lengths.values()) == pytest.approx(100, rel=0.1)
    assert len(set(lengths.values())) > 50
    again = CostModelBackend(Options(answer_tokens=100, answer_sigma=0.5, seed=3))
    again.admit(7, [1, 2, 3], 5)
    assert again._lengths[7] == lengths[7]


@given(st.integers(1, 500), st.integers(1, 40))
def test_a_step_takes_what_the_cost_model_says(prompt: int, decoding: int) -> None:
    cost = Roofline(RooflineOptions())
    backend = CostModelBackend(cost=cost)
    backend.admit(1, [1] * prompt, 10**6, SamplingParams(ignore_eos=True))
    first = backend.execute(Launch(1, slices=[(1, 0, prompt, True)]))
    pairs = prompt * (prompt + 1) // 2
    assert first.elapsed_ns == cost.step_ns(BatchShape(prefill_tokens=prompt, prefill_requests=1, prefill_pairs=pairs))
    joined = [1]
    for step in range(decoding):
        result = backend.execute(Launch(2 + step, decode=True, joined=joined))
        joined = []
        assert result.elapsed_ns == cost.step_ns(BatchShape(decode_requests=1, kv_tokens=prompt + step))


def test_the_configuration_makes_it() -> None:
    options = {"model": "llama-3-70b", "tensor_parallel": 4}
    model = ModelConfig(path="costmodel", options={"answer_tokens": 3})
    backend = build_backend(Config(model=model, cost=CostConfig(model="roofline", options=options)))
    assert backend.info.model == "llama-3-70b as if on 4 × H100 (cost model roofline)"
    assert backend.info.context == 131_072
    plain = build_backend(Config(model=ModelConfig(path="costmodel")))
    assert plain.info.model == "nothing, in the time of the cost model linear"
    assert isinstance(plain._echo._cost, Linear)  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"model\.options\.answer_tokens"):
        build_backend(Config(model=ModelConfig(path="costmodel", options={"answer_tokens": 0})))


def test_pools_that_the_devices_do_not_hold_are_refused() -> None:
    cost = CostConfig(model="roofline", options={"device": "L4"})
    with pytest.raises(UserError, match=r"8192 pages of 16 tokens do not fit.*hold \d+ beside 15\.0 GiB") as caught:
        simulate(Config(cost=cost))
    assert caught.value.field == "memory.pages"
    with pytest.raises(UserError, match=r"cost\.options\.page_size=32 too"):
        simulate(Config(cost=cost, memory=MemoryConfig(page_size=32, pages=100)))
