"""Steps on a device: at every step of any schedule they say what the host's own way says."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs the extra `model`")

from stepwell.backends.device import sides, stepper  # noqa: E402
from stepwell.backends.device.stepper import DeviceStepper  # noqa: E402
from stepwell.backends.torch_backend import TorchBackend  # noqa: E402
from stepwell.core.errors import UserError  # noqa: E402
from stepwell.core.instructions import Launch  # noqa: E402
from stepwell.core.registry import names  # noqa: E402
from stepwell.core.sampling import GREEDY, SamplingParams  # noqa: E402
from stepwell.tests.backends.device.tape import Tape  # noqa: E402
from stepwell.tests.backends.driving import Hand, Served, make, serve  # noqa: E402
from stepwell.tests.backends.tiny import END, SHAPE, write_gguf  # noqa: E402
from stepwell.tests.backends.twins import Twins  # noqa: E402

FREE = SamplingParams(temperature=0.0, ignore_eos=True)
RESTLESS = "stepwell.tests.backends.restless:Restless"
SAMPLINGS = (
    GREEDY,
    FREE,
    SamplingParams(temperature=0.0, logprobs=2, prompt_logprobs=1),
    SamplingParams(temperature=1.3, seed=1),
    SamplingParams(temperature=0.8, top_p=0.7, seed=5),
    SamplingParams(temperature=0.9, top_p=0.9, frequency_penalty=0.5, logprobs=0, seed=2),
    SamplingParams(temperature=1.0, top_k=20, min_p=0.02, seed=3),
    SamplingParams(temperature=0.0, presence_penalty=0.7, repetition_penalty=1.1),
    SamplingParams(temperature=0.0, min_tokens=8, logit_bias={END: 100.0}),
    SamplingParams(temperature=1.0, seed=4, allowed_token_ids=tuple(range(40, 60)), bad_words=((41, 42), (43,))),
    SamplingParams(temperature=0.0, stop_token_ids=tuple(range(0, 160, 9))),
)
Request = tuple[list[int], int, SamplingParams]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("tiny") / "model.gguf")


def on_device(path: Path, kernels: str = "plain", **sizes: Any) -> TorchBackend:
    backend = make(path, deterministic=False, kernels=kernels, **sizes)
    assert isinstance(backend.stepper, DeviceStepper)
    return backend


def crowd(
    count: int,
    seed: int,
    prompts: tuple[int, int] = (1, 40),
    answers: tuple[int, int] = (1, 24),
    samplings: Sequence[SamplingParams] = SAMPLINGS,
) -> list[Request]:
    dice = random.Random(seed)
    return [
        (
            [dice.randrange(SHAPE.vocab_size) for _ in range(dice.randint(*prompts))],
            dice.randint(*answers),
            dice.choice(samplings),
        )
        for _ in range(count)
    ]


def twins(path: Path, other: Any, **sizes: Any) -> Twins:
    return Twins(make(path, deterministic=False, **sizes), other(path, **sizes))


def serve_restless(both: Twins, requests: list[Request], **scheduler: Any) -> Served:
    served = serve(both, requests, policy=RESTLESS, **scheduler)
    assert all(served.reasons)
    return served


# ------------------------------------------------------------------------------------------------ the same tokens


@given(
    seed=st.integers(0, 1 << 20),
    page_size=st.sampled_from([1, 3, 8]),
    depth=st.integers(1, 3),
    percent=st.sampled_from([5.0, 40.0]),
    recorded=st.booleans(),
    allocator=st.sampled_from(sorted(names("allocators"))),
)
@settings(max_examples=4, deadline=None)
def test_any_schedule_says_at_every_step_what_the_host_says(
    model: Path, seed: int, page_size: int, depth: int, percent: float, recorded: bool, allocator: str
) -> None:
    """Swaps, recomputes and joins by chance; steps by hand, and repeated from a recording."""
    any_schedule(model, seed, page_size, depth, percent, recorded, allocator)


@pytest.mark.slow
@given(
    seed=st.integers(0, 1 << 20),
    page_size=st.sampled_from([1, 2, 3, 8, 16]),
    depth=st.integers(1, 3),
    percent=st.sampled_from([2.0, 10.0, 40.0]),
    recorded=st.booleans(),
    allocator=st.sampled_from(sorted(names("allocators"))),
)
@settings(max_examples=60, deadline=None)
def test_many_schedules_say_at_every_step_what_the_host_says(
    model: Path, seed: int, page_size: int, depth: int, percent: float, recorded: bool, allocator: str
) -> None:
    any_schedule(model, seed, page_size, depth, percent, recorded, allocator)


def any_schedule(
    model: Path, seed: int, page_size: int, depth: int, percent: float, recorded: bool, allocator: str
) -> None:
    other = partial(on_device, recorder_of=Tape) if recorded else on_device
    pages = 140 // page_size
    both = twins(model, other, pages=pages, host_pages=pages // 2, page_size=page_size)
    requests = crowd(14, seed)
    served = serve_restless(
        both, requests, depth=depth, seed=seed, options={"percent": percent}, allocator=allocator, token_budget=24
    )
    assert both.steps > 20
    assert both.mixed
    assert served.preemptions.total() or percent < 40


def test_padding_and_recordings_serve_every_size_of_group(model: Path) -> None:
    """Groups of 1 to 11 members, by graphs of 1, 2, 4, 8 and 11 rows, each of which is repeated."""
    tapes: list[Tape] = []

    def tape() -> Tape:
        tapes.append(Tape())
        return tapes[-1]

    sizes: dict[str, Any] = {"running_limit": 11, "token_budget": 32}
    both = twins(model, partial(on_device, recorder_of=tape), **sizes)
    info = both.other.info
    assert (info.kernels, info.graphs, info.graph_bytes) == ("plain", 5, sum(tapes[-1].taken))
    assert len(tapes) == 2, "one was tried before pages were taken"
    state = memory_of(both.other)
    requests = [([7 + index] * (1 + index), 4 + 4 * index, FREE) for index in range(11)]
    served = serve(both, requests, **sizes)
    assert [len(each) for each in served.answers] == [most for _, most, _ in requests]
    assert all(count > 1 for count in tapes[-1].repeated), tapes[-1].repeated
    assert memory_of(both.other) == state


def memory_of(backend: TorchBackend) -> list[int]:
    """Where what its recordings are bound to lies."""
    assert isinstance(backend.stepper, DeviceStepper)
    return [each.data_ptr() for each in vars(backend.stepper._inputs).values() if isinstance(each, torch.Tensor)]


@pytest.mark.parametrize("recorder_of", [None, Tape])
def test_tokens_are_drawn_without_a_look_at_the_scores(
    recorder_of: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of greedy requests and drawn ones, with penalties, biases and a least length; words that may not come want
    their scores on the host, and so does who comes when all side places are taken."""
    asked: list[Sequence[int]] = []
    fetch = stepper._fetched

    def fetched(scores: Any, places: Sequence[int]) -> Any:
        asked.append(places)
        return fetch(scores, places)

    monkeypatch.setattr(stepper, "_fetched", fetched)
    monkeypatch.setattr(sides, "MOST", 4)
    penalised = SamplingParams(temperature=0.0, presence_penalty=1.0, ignore_eos=True)
    drawn = [
        FREE,
        SamplingParams(temperature=1.3, seed=1, ignore_eos=True),
        SamplingParams(temperature=1.0, top_k=9, top_p=0.9, min_p=0.01, seed=2, ignore_eos=True),
        penalised,
        SamplingParams(temperature=1.0, frequency_penalty=0.8, repetition_penalty=1.3, seed=3, ignore_eos=True),
        SamplingParams(temperature=0.0, min_tokens=5, logit_bias={END: 100.0, 7: 3.0}),
    ]
    both = twins(model, partial(on_device, recorder_of=recorder_of))
    for _ in range(3):  # places are given back
        serve(both, [([5 + index] * 4, 8, sampling) for index, sampling in enumerate(drawn)])
    assert not asked
    serve(both, [([5 + index], 8, penalised) for index in range(6)])
    assert asked
    assert max(map(len, asked)) == 2
    asked.clear()
    serve(both, [([5], 4, SamplingParams(temperature=0.0, bad_words=((41,),), ignore_eos=True))])
    assert asked == [[0]] * 4


def test_a_request_may_use_the_whole_context(model: Path) -> None:
    """Deeper, it computes past its last position before it hears that it is over."""
    for depth in (1, 3):
        both = twins(model, on_device, pages=8, page_size=4, running_limit=2, token_budget=16)
        served = serve(both, [([5] * 20, 100, FREE)], depth=depth, token_budget=16, running_limit=2)
        assert served.reasons == ["length"]
        assert len(served.answers[0]) == 12


# ------------------------------------------------------------------------------------------------ trouble


def test_scores_that_are_no_numbers_blame_their_request_alone(model: Path) -> None:
    for recorder_of in (None, Tape):
        backend = on_device(model, recorder_of=recorder_of)
        hand = Hand(backend)
        hand.begin(1, [5] * 10, 16, FREE)
        hand.begin(2, [6] * 11, 16, FREE)
        backend._cache.keys[:, backend._rows[2].table[0]] = torch.nan
        failed = backend.execute(Launch(9, decode=True, joined=[1, 2]))
        assert failed.blamed == [2]
        assert "not finite" in failed.failed
        assert torch.isfinite(backend._cache.keys).all()


def test_a_failed_step_is_a_result_and_nothing_of_it_counts(model: Path) -> None:
    backend, whole = on_device(model), Hand(on_device(model))
    hand = Hand(backend)
    hand.begin(1, [5] * 10, 16, FREE)
    bad = backend.execute(Launch(2, slices=[(1, 10, 400, True)]))
    assert "IndexError" in bad.failed
    assert not bad.tokens
    hand.prefill(1, 11, 4)
    hand.decode(4, joined=[1])
    whole.begin(1, [5] * 10, 16, FREE)
    whole.decode(5, joined=[1])
    assert hand.answers[1] == whole.answers[1]


def test_a_request_released_while_its_step_is_on_the_way_is_passed_over(model: Path) -> None:
    backend = on_device(model)
    hand = Hand(backend)
    for request in (1, 2):
        hand.begin(request, [request] * 10, 16, FREE)
    hand.decode(2, joined=[1, 2])
    backend.release(2)
    result = backend.execute(Launch(50, decode=True, tables=[(2, [1])], growth=[2, 9]))
    assert [request for request, _ in result.tokens] == [1]
    result = backend.execute(Launch(51, slices=[(2, 0, 5, True)], left=[2], joined=[2]))
    assert not result.failed
    assert not result.tokens
    assert len(backend.stepper.group.rows) == 1


def test_kernels_and_what_does_not_go_with_them(model: Path) -> None:
    assert make(model, deterministic=False).info.kernels == ""
    assert on_device(model).info.kernels == "plain"
    assert on_device(model).info.graphs == 0, "there is nothing to record with"
    with pytest.raises(UserError, match=r"options\.kernels: deterministic is computed without kernels"):
        make(model, kernels="plain")


# ------------------------------------------------------------------------------------------------ by Triton


@pytest.mark.skipif(find_spec("triton") is None, reason="needs the extra `cuda`")
def test_triton_s_kernels_say_at_every_step_what_the_host_says(tmp_path: Path) -> None:
    """In their interpreter, which takes its time: two requests in slices, one of which gives way, beside each other, by
    a model of one layer."""
    model = write_gguf(tmp_path / "model.gguf", msgspec.structs.replace(SHAPE, layers=1))
    requests = crowd(3, 0, (4, 8), (3, 5), (FREE, SamplingParams(seed=1, top_p=0.9, ignore_eos=True)))
    by_triton(model, 3, requests, pages=7, running_limit=2, token_budget=6)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="needs the extra `cuda`")
@pytest.mark.parametrize("page_size", [3, 8])
def test_triton_s_kernels_in_a_crowd(model: Path, page_size: int) -> None:
    """Under pressure, so that requests are swapped, recomputed, and sliced anew."""
    requests = crowd(6, 2, prompts=(1, 24), answers=(4, 10))
    by_triton(model, page_size, requests, pages=90 // page_size, running_limit=6, token_budget=24)


def by_triton(model: Path, page_size: int, requests: list[Request], **sizes: int) -> None:
    limits = {name: sizes[name] for name in ("running_limit", "token_budget")}
    other = partial(on_device, kernels="triton")
    both = twins(model, other, host_pages=8, page_size=page_size, **sizes)
    assert both.other.info.kernels == "triton"
    served = serve_restless(both, requests, options={"percent": 60.0}, **limits)
    assert served.preemptions.keys() == {"swap", "recompute"}
    assert both.mixed
