"""The backend ``torch`` on a tiny model: against a naive dense one, against itself alone, and under the real engine."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `model`")

from stepwell.backends.torch_backend import TorchBackend  # noqa: E402
from stepwell.core.errors import UserError  # noqa: E402
from stepwell.core.instructions import Launch  # noqa: E402
from stepwell.core.sampling import GREEDY, SamplingParams  # noqa: E402
from stepwell.tests.backends.driving import Hand, make, serve, watch  # noqa: E402
from stepwell.tests.backends.tiny import END, SHAPE, dense_logits, weights, write_folder, write_gguf  # noqa: E402
from stepwell.tests.helpers.quick import diagonal  # noqa: E402

FREE = SamplingParams(temperature=0.0, ignore_eos=True)
LENGTHS = (1, 15, 16, 17, 37, 63, 64, 65)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("tiny") / "model.gguf")


def prompt(length: int, seed: int = 0) -> list[int]:
    dice = random.Random(f"{length} {seed}")
    return [dice.randrange(SHAPE.vocab_size) for _ in range(length)]


# ------------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(("page_size", "chunk"), [(16, 1000), (4, 7), (1, 16), (64, 1)])
def test_scores_are_those_of_a_dense_model(model: Path, deterministic: bool, page_size: int, chunk: int) -> None:
    backend = make(model, deterministic=deterministic, page_size=page_size, pages=640 // page_size)
    watched, hand = watch(backend), Hand(backend)
    prompts = {index + 1: prompt(length) for index, length in enumerate((1, 17, 37, 64))}
    for request, tokens in prompts.items():
        hand.begin(request, tokens, chunk, FREE)
    hand.decode(12, joined=list(prompts))
    made = weights()
    for request, tokens in prompts.items():
        answer = hand.answers[request]
        assert len(answer) == 13
        expected = dense_logits(tokens + answer[:-1], made)[len(tokens) - 1 :]
        for offset, row in enumerate(expected):
            found = watched.logits[request, len(tokens) + offset].double()
            assert (found - row).abs().max() <= 1e-4 * row.abs().max()


def test_bfloat16_is_near(model: Path) -> None:
    backend = make(model, deterministic=False, dtype="bfloat16")
    watched, hand = watch(backend), Hand(backend)
    hand.begin(1, prompt(30), 8, FREE)
    expected = dense_logits(prompt(30), weights())[-1]
    assert (watched.logits[1, 30].double() - expected).abs().max() < 0.1 * expected.abs().max()


def test_both_formats_give_the_same_scores(model: Path, tmp_path: Path) -> None:
    scores = []
    for path in (model, write_folder(tmp_path, shards=2)):
        backend = make(path)
        watched = watch(backend)
        Hand(backend).begin(1, prompt(37), 64, FREE)
        scores.append(watched.logits[1, 37])
    assert torch.equal(scores[0], scores[1])


# ------------------------------------------------------------------------------------------------ company


def alone(model: Path, tokens: list[int], sampling: SamplingParams, steps: int) -> tuple[list[int], dict[int, Any]]:
    backend = make(model)
    watched, hand = watch(backend), Hand(backend)
    hand.begin(1, tokens, 1000, sampling)
    hand.decode(steps, joined=[1])
    return hand.answers[1], {place: scores for (_, place), scores in watched.logits.items()}


@pytest.mark.parametrize(("company", "cut"), diagonal([31, 1, 7], [(16, 16), (3, 64), (16, 1000), (8, 5)]))
def test_ou_4_company_chunks_and_pages_change_no_bit(model: Path, company: int, cut: tuple[int, int]) -> None:
    page_size, chunk = cut
    seeded = SamplingParams(temperature=1.0, seed=11, ignore_eos=True)
    for sampling in (FREE, seeded):
        answer, scores = alone(model, prompt(37), sampling, 20)
        backend = make(model, page_size=page_size, pages=4000 // page_size)
        watched, hand = watch(backend), Hand(backend)
        dice = random.Random(company)
        strangers = range(100, 100 + company)
        for request in strangers:
            odd = SamplingParams(temperature=2.0, seed=request, frequency_penalty=1.0, ignore_eos=True)
            hand.begin(request, prompt(dice.randrange(1, 60), request), chunk, odd)
        hand.decode(3, joined=[request for request in strangers if request % 2])
        hand.begin(1, prompt(37), chunk, sampling)
        hand.decode(20, joined=[1, *(request for request in strangers if not request % 2)])
        assert hand.answers[1] == answer
        for place, expected in scores.items():
            assert torch.equal(watched.logits[1, place], expected), place


def test_ou_4_any_order_of_arrival_changes_no_token(model: Path) -> None:
    """20 repeats in shuffled order, under the engine, seven strangers with parameters of their own beside it."""
    odd = SamplingParams(temperature=2.0, presence_penalty=1.0, logit_bias={5: 3.0}, ignore_eos=True)
    requests = [(prompt(37), 8, FREE)]
    requests += [(prompt(9 * index, index), 8, msgspec.structs.replace(odd, seed=index)) for index in range(1, 8)]
    backend = make(model, pages=40)
    own = serve(backend, requests, at_once=False).answers
    dice = random.Random(4)
    for _ in range(20):
        order = dice.sample(range(len(requests)), len(requests))
        served = serve(backend, [requests[index] for index in order], token_budget=dice.choice((16, 64)))
        assert served.answers == [own[index] for index in order], order


def test_cp_1_any_chunking_gives_one_first_token_and_the_same_bits(model: Path) -> None:
    for length in LENGTHS:
        answer, scores = alone(model, prompt(length), FREE, 2)
        for chunk in (1, 16, 63):
            backend = make(model)
            watched, hand = watch(backend), Hand(backend)
            hand.begin(1, prompt(length), chunk, FREE)
            assert hand.answers[1] == answer[:1]
            hand.decode(2, joined=[1])
            assert hand.answers[1] == answer
            assert torch.equal(watched.logits[1, length], scores[length])


PENALISED = SamplingParams(
    temperature=0.8, seed=5, presence_penalty=1.2, frequency_penalty=1.2, logprobs=3, ignore_eos=True
)


@pytest.mark.parametrize("at", [1, 17, 79])
@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_pr_1_preempted_anywhere_the_answer_goes_on(model: Path, at: int, mode: str) -> None:
    answer, scores = alone(model, prompt(60), PENALISED, 79)
    backend = make(model, host_pages=32)
    watched, hand = watch(backend), Hand(backend)
    hand.begin(1, prompt(60), 16, PENALISED)
    hand.begin(2, prompt(9), 16, FREE)
    hand.decode(at - 1, joined=[1, 2])
    for turn in range(2):
        table = list(backend._rows[1].table)
        stored = 60 + at - 1 + 3 * turn
        group = [1] if backend.stepper.group.rows and any(row.id == 1 for row in backend.stepper.group.rows) else []
        if mode == "swap":
            used = -(-stored // 8)
            host = list(range(used - 1, -1, -1))
            hand.launch(left=group, swap_out=[(1, table[:used], host)])
            hand.free = [*table, *hand.free]
            fresh = [hand.free.pop() for _ in table]
            hand.launch(tables=[(1, fresh)], swap_in=[(1, fresh[:used], host)])
            joined = [1]
        else:
            hand.free = [*table, *hand.free]
            hand.launch(left=group)
            hand.prefill(1, len(backend._rows[1].tokens), 7)
            joined = [1]
        if len(hand.answers[1]) >= 78:
            break
        hand.decode(3, joined=joined)
        joined = []
    if joined:
        hand.decode(1, joined=joined)
    hand.decode(80 - len(hand.answers[1]))
    assert hand.answers[1][:80] == answer
    assert backend._rows[1].prompt_tokens == 60
    for place, expected in scores.items():
        assert torch.equal(watched.logits[1, place], expected), place


@pytest.mark.parametrize("length", [2, 8, 9, 37])
def test_a_fork_reads_shared_pages_and_its_copy_and_both_go_on_by_themselves(model: Path, length: int) -> None:
    """The child shares the prompt but for its last token, while its parent has gone on already."""
    seeded = SamplingParams(temperature=1.0, seed=11, ignore_eos=True)
    backend = make(model)
    watched, hand = watch(backend), Hand(backend)
    hand.begin(1, prompt(length), 64, FREE)
    hand.decode(4, joined=[1])
    backend.admit(2, prompt(length), 100, seeded)
    table, full = backend._rows[1].table, (length - 1) // 8
    own = hand.free.pop()
    copies = [(table[full], own)] if (length - 1) % 8 else []
    hand.sizes[2], hand.known[2] = full + 1, length
    hand.launch(tables=[(2, [*table[:full], own])], copies=copies, slices=[(2, length - 1, 1, True)])
    hand.decode(12, joined=[2])
    for request, sampling, steps in ((1, FREE, 16), (2, seeded, 12)):
        answer, scores = alone(model, prompt(length), sampling, steps)
        assert hand.answers[request] == answer
        assert all(torch.equal(watched.logits[request, place], expected) for place, expected in scores.items())


@pytest.mark.parametrize(("depth", "policy"), diagonal([1, 2, 3], ["fcfs", "swap"]))
def test_under_the_engine_in_a_tiny_pool_nobody_s_answer_changes(model: Path, depth: int, policy: str) -> None:
    """Deeper, a launch on its way still names, and lets grow, a request whose client has left."""
    dice = random.Random(3)
    requests = []
    for index in range(12):
        seeded = SamplingParams(temperature=1.2, top_p=0.95, seed=index, min_tokens=index % 5)
        requests.append((prompt(dice.randrange(1, 50), index), dice.randrange(5, 45), seeded if index % 2 else GREEDY))
    backend = make(model, pages=26, page_size=4, host_pages=8)
    apart = serve(make(model, pages=64), requests, at_once=False)
    assert not apart.preemptions
    together = serve(backend, requests, policy=policy, depth=depth)
    assert together.answers == apart.answers
    assert together.reasons == apart.reasons
    assert together.preemptions["recompute"] > 0
    assert together.preemptions["swap"] > 0 or policy == "fcfs"
    assert not backend._rows
    left = {4: 3, 7: 1, 8: 10}
    house = make(model, pages=26, page_size=4, host_pages=8)
    cut = serve(house, requests, policy=policy, cancels=left, depth=depth)
    for index, answer in enumerate(cut.answers):
        whole = apart.answers[index]
        assert answer == (whole[: len(answer)] if index in left else whole), index


# ------------------------------------------------------------------------------------------------ ends, failures


def test_eo_1_end_tokens_end_unless_they_are_to_be_ignored(model: Path) -> None:
    loud = {END: 100.0}
    backend = make(model)
    want = SamplingParams(temperature=0, logit_bias=loud)
    served = serve(
        backend,
        [
            (prompt(5), 6, want),
            (prompt(5), 6, SamplingParams(temperature=0, logit_bias=loud, ignore_eos=True)),
            (prompt(5), 6, SamplingParams(temperature=0, logit_bias=loud, min_tokens=3)),
            (prompt(5), 6, SamplingParams(temperature=0, logit_bias={9: 100.0}, stop_token_ids=(9,))),
        ],
    )
    assert [len(each) for each in served.answers] == [1, 6, 4, 1]
    assert served.reasons == ["stop", "length", "stop", "stop"]
    assert END not in served.answers[2][:3]


def test_log_probabilities_come_with_the_token(model: Path) -> None:
    backend = make(model)
    backend.admit(1, prompt(5), 5, SamplingParams(temperature=0, logprobs=2, ignore_eos=True))
    result = backend.execute(Launch(1, tables=[(1, [3])], slices=[(1, 0, 5, True)]))
    best = result.logprobs[1]
    assert best.top[0] == (result.tokens[0][1], best.logprob)
    assert len(best.top) == 2
    expected = dense_logits(prompt(5), weights())[-1].log_softmax(-1)
    assert best.logprob == pytest.approx(expected.max().item(), abs=1e-4)
    assert result.elapsed_ns > 0


def test_a_failed_step_is_a_result_and_nothing_of_it_counts(model: Path) -> None:
    backend = make(model)
    hand = Hand(backend)
    hand.begin(1, prompt(10), 16, FREE)
    bad = backend.execute(Launch(2, slices=[(1, 10, 400, True)]))
    assert "IndexError" in bad.failed
    assert not bad.tokens
    hand.prefill(1, 11, 4)
    hand.decode(4, joined=[1])
    assert hand.answers[1] == alone(model, prompt(10), FREE, 5)[0]


def test_scores_that_are_no_numbers_blame_their_request_alone(model: Path) -> None:
    backend = make(model)
    hand = Hand(backend)
    hand.begin(1, prompt(10), 16, FREE)
    hand.begin(2, prompt(11), 16, FREE)
    backend._cache.keys[:, backend._rows[2].table[0]] = torch.nan
    failed = backend.execute(Launch(9, decode=True, joined=[1, 2]))
    assert failed.blamed == [2]
    assert "not finite" in failed.failed
    assert torch.isfinite(backend._cache.keys).all()


def test_a_request_released_while_its_step_is_on_the_way_is_passed_over(model: Path) -> None:
    backend = make(model)
    hand = Hand(backend)
    for request in (1, 2):
        hand.begin(request, prompt(10, request), 16, FREE)
    hand.decode(2, joined=[1, 2])
    backend.release(2)
    result = backend.execute(Launch(50, decode=True, joined=[], tables=[(2, [1])], growth=[2, 9]))
    assert [request for request, _ in result.tokens] == [1]
    result = backend.execute(Launch(51, slices=[(2, 0, 5, True)], left=[2], joined=[2]))
    assert not result.failed
    assert not result.tokens
    assert len(backend.stepper.group.rows) == 1


def test_what_cannot_be_is_refused(model: Path) -> None:
    backend = make(model)
    with pytest.raises(UserError, match="prompt: token 160 is outside"):
        backend.admit(1, [1, 160], 5)
    with pytest.raises(UserError, match="prompt"):
        backend.admit(1, [], 5)
    with pytest.raises(UserError, match="device"):
        TorchBackend(TorchBackend.Options(path=str(model), device="abacus"))
    with pytest.raises(UserError, match="float32"):
        TorchBackend(TorchBackend.Options(path=str(model), dtype="bfloat16", deterministic=True))
    with pytest.raises(UserError, match=r"memory\.pages: .*pages would fit"):
        TorchBackend(TorchBackend.Options(path=str(model), memory_mib=64), pages=1 << 30)


def test_info_says_what_was_found(model: Path) -> None:
    info = make(model, pages=10, page_size=8, host_pages=2).info
    assert (info.vocab_size, info.context, info.dtype, info.page_bytes) == (160, 80, "float32", 2 * 2 * 8 * 2 * 16 * 4)
    assert info.possible_pages > 10
