"""The real small model against Hugging Face transformers (``tests/golden/make_smollm2.py`` made the file).

For any chunking, company and page size, first logits differ by less than 1e-3 of the largest, and greedy tokens are
equal up to the first position whose two best logits are nearer to each other than that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `model`")

from stepwell.backends.torch_backend import TorchBackend  # noqa: E402
from stepwell.core.sampling import SamplingParams  # noqa: E402
from stepwell.tests.backends.driving import Hand, Watched, serve, watch  # noqa: E402
from stepwell.tests.helpers.small_model import needs_small_model  # noqa: E402

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())
STEPS = 24
FREE = SamplingParams(temperature=0.0, ignore_eos=True)
TOLERANCE = 1e-3
"""Of the largest logit."""

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def _model() -> None:
    needs_small_model()


def make(*, pages: int, page_size: int, host_pages: int = 0, deterministic: bool = False) -> TorchBackend:
    options = TorchBackend.Options(dtype="float32", threads=1, deterministic=deterministic)
    return TorchBackend(
        options, pages=pages, page_size=page_size, host_pages=host_pages, token_budget=64, running_limit=32
    )


def check(row: dict[str, Any], watched: Watched, request: int, answer: Sequence[int]) -> None:
    found = watched.logits[request, len(row["ids"])]
    largest = max(abs(score) for _, score in row["logits"])
    for token, score in row["logits"]:
        assert abs(float(found[token]) - score) < TOLERANCE * largest, (row["prompt"], token)
    assert len(answer) == STEPS
    unsure = next((place for place, margin in enumerate(row["margins"]) if margin < TOLERANCE), STEPS)
    assert list(answer[:unsure]) == row["greedy"][:unsure], row["prompt"]


def test_the_golden_file_is_worth_something() -> None:
    lengths = [len(row["ids"]) for row in GOLDEN]
    assert len(GOLDEN) == 20
    assert min(lengths) < 5
    assert max(lengths) > 150
    sure = [sum(margin >= TOLERANCE for margin in row["margins"]) for row in GOLDEN]
    assert min(sure) > 0
    assert sum(sure) > 400


@pytest.mark.parametrize(
    ("deterministic", "chunk", "page_size"), [(False, 1000, 16), (False, 3, 5), (True, 24, 4), (False, 64, 1)]
)
def test_all_together_give_the_tokens_and_scores_of_transformers(
    deterministic: bool, chunk: int, page_size: int
) -> None:
    """Each prompt is computed in slices of ``chunk``, and all decode in one group."""
    backend = make(pages=2000 // page_size, page_size=page_size, deterministic=deterministic)
    watched, hand = watch(backend), Hand(backend)
    for request, row in enumerate(GOLDEN, 1):
        hand.begin(request, row["ids"], chunk, FREE)
    hand.decode(STEPS - 1, joined=range(1, len(GOLDEN) + 1))
    for request, row in enumerate(GOLDEN, 1):
        check(row, watched, request, hand.answers[request])


@pytest.mark.parametrize("deterministic", [False, True])
def test_each_alone_gives_the_tokens_and_scores_of_transformers(deterministic: bool) -> None:
    backend = make(pages=20, page_size=16, deterministic=deterministic)
    watched = watch(backend)
    for row in GOLDEN[-2:] if deterministic else [*GOLDEN[::5], *GOLDEN[-2:]]:
        watched.logits.clear()
        hand = Hand(backend)
        hand.begin(1, row["ids"], 1000, FREE)
        hand.decode(STEPS - 1, joined=[1])
        check(row, watched, 1, hand.answers[1])
        backend.close()


def test_in_a_small_pool_under_the_engine_they_are_those_of_transformers() -> None:
    """Slices of some share a step with the decodes of others; some give way, by swap and by recompute, and go on."""
    backend = make(pages=70, page_size=7, host_pages=6)
    watched = watch(backend)
    requests = [(row["ids"], STEPS, FREE) for row in GOLDEN]
    served = serve(backend, requests, policy="swap", token_budget=32, running_limit=20)
    assert served.preemptions["swap"] > 0
    assert served.preemptions["recompute"] > 0
    for request, row in enumerate(GOLDEN, 1):
        check(row, watched, request, served.answers[request - 1])
