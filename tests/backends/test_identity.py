"""Output identity at saturation: whatever happens to a request on the way, its answer is the one it gets alone.

64 requests in a pool that holds 12 of them, clients that leave at random, and a policy that swaps and recomputes more
than it has to, in the middle of prompts as well as of answers.  Token ids and log-probabilities must be equal to the
last bit, greedy and seeded, on the backend that promises it (``deterministic``, float32), under the real engine.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `model`")

from stepwell.core.registry import names
from stepwell.tests.backends.driving import make
from stepwell.tests.backends.saturation import House, check_identity, crowd_of, pages_of
from stepwell.tests.backends.tiny import SHAPE, write_gguf
from stepwell.tests.helpers.quick import diagonal, quick_for
from stepwell.tests.helpers.small_model import small_model_path

RESTLESS = "stepwell.tests.backends.restless:Restless"


def saturate(
    path: Path,
    vocabulary: int,
    *,
    prompts: tuple[int, int],
    answers: tuple[int, int],
    depths: tuple[int, ...] = (1,),
    percent: float = 50.0,
    allocator: str = "paged",
) -> None:
    """Prompts and answers of so many tokens; ``percent`` of those who run are sent away at a time."""
    asked = crowd_of(64, vocabulary, prompts=prompts, answers=answers, seed=1)
    page_size = 4
    pages = pages_of(asked, 12, page_size)
    limits = {"token_budget": 96, "running_limit": 64}
    backend = make(path, pages=pages, host_pages=pages // 2, page_size=page_size, **limits)
    crowds = []
    for depth in depths:
        house = House(backend, RESTLESS, {**limits, "depth": depth, "options": {"percent": percent}}, allocator)
        crowds.append(house.serve(asked))
        assert house.preemptions["swap"] > 50, house
        assert house.preemptions["recompute"] > 50, house
        assert house.fullest > 0.8 * pages, house
        assert len(house.left) > 2, house
        reasons = [said.reason for said in crowds[-1]]
        assert reasons.count("cancelled") == house.left.total() > 5
        assert reasons.count("length") > 20
    # With a budget and a pool of other sizes, so that chunks and pages differ too.
    alone = House(make(path, pages=200, page_size=16), scheduler={"running_limit": 16})
    check_identity(asked, crowds, alone)


@pytest.mark.parametrize("allocator", quick_for(sorted(names("allocators")), {"paged", "prefix"}.__contains__))
def test_ou_4_pr_1_every_answer_at_saturation_is_the_one_alone(tmp_path: Path, allocator: str) -> None:
    path = write_gguf(tmp_path / "model.gguf")
    depths = (1, 2) if allocator == "paged" else (2,)
    saturate(path, SHAPE.vocab_size, depths=depths, prompts=(1, 40), answers=(8, 24), allocator=allocator)


@pytest.mark.parametrize(("allocator", "page_size"), diagonal(sorted(names("allocators")), [1, 4, 7]))
def test_ou_4_choices_of_a_prompt_are_the_requests_that_each_is_alone(
    tmp_path: Path, allocator: str, page_size: int
) -> None:
    """Eight prompts of four choices each, greedy and seeded, in a pool that holds a few, at depth 1 and 2."""
    backend_of = partial(make, write_gguf(tmp_path / "model.gguf"))
    asked = crowd_of(32, SHAPE.vocab_size, prompts=(1, 30), answers=(8, 16), seed=page_size, choices=4)
    pages = pages_of(asked, 8, page_size)
    limits = {"token_budget": 96, "running_limit": 32}
    backend = backend_of(pages=pages, host_pages=pages // 2, page_size=page_size, **limits)
    crowds = []
    for depth in (1, 2):
        house = House(backend, RESTLESS, {**limits, "depth": depth, "options": {"percent": 20.0}}, allocator)
        crowds.append(house.serve(asked))
        assert house.preemptions["swap"] + house.preemptions["recompute"] > 20, house
        assert house.cached > 50, house
        assert (house.copied > 0) == (page_size > 1 or allocator == "contiguous"), house
    check_identity(asked, crowds, House(backend_of(pages=200, page_size=16), scheduler={"running_limit": 16}))


@pytest.mark.slow
def test_ou_4_pr_1_every_answer_at_saturation_is_the_one_alone_for_smollm2() -> None:
    path = small_model_path()
    saturate(path, 49152, percent=85.0, prompts=(1, 14), answers=(4, 6))
