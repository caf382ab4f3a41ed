"""CP-1: log-probabilities of a prompt's own tokens are the same however it is cut, and whatever happens on the way."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `model`")

from stepwell.core.sampling import SamplingParams  # noqa: E402
from stepwell.tests.backends.driving import make, serve  # noqa: E402
from stepwell.tests.backends.tiny import SHAPE, dense_logits, weights, write_gguf  # noqa: E402

LENGTHS = (1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 192)
CHUNK = 64
ASKED = SamplingParams(temperature=0.0, ignore_eos=True, prompt_logprobs=2, logprobs=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("tiny") / "model.gguf")


def prompt(length: int) -> list[int]:
    dice = random.Random(length)
    return [dice.randrange(SHAPE.vocab_size) for _ in range(length)]


@pytest.mark.parametrize("deterministic", [True, False])
def test_they_are_those_of_a_dense_model(model: Path, deterministic: bool) -> None:
    backend = make(model, deterministic=deterministic, page_size=16)
    served = serve(backend, [(prompt(length), 3, ASKED) for length in LENGTHS], token_budget=CHUNK)
    made = weights()
    for length, rows in zip(LENGTHS, served.prompt_logprobs, strict=True):
        assert len(rows) == length - 1
        expected = dense_logits(prompt(length), made).log_softmax(-1)
        for place, row in enumerate(rows):
            assert row.logprob == pytest.approx(float(expected[place, prompt(length)[place + 1]]), abs=2e-3)
            assert row.top[0][1] == pytest.approx(float(expected[place].max()), abs=2e-3)
            assert len(row.top) == 2


def test_cp_1_chunks_and_company_change_no_row(model: Path) -> None:
    """In one piece and alone; in slices beside ten that decode; and in a pool so small that they are moved about."""
    asked = [(prompt(length), 12, ASKED) for length in LENGTHS]
    company = [(prompt(5 + index), 60, SamplingParams(temperature=0.0, ignore_eos=True)) for index in range(10)]
    whole = serve(make(model, page_size=16, token_budget=256), asked, at_once=False, token_budget=256)
    assert [len(rows) for rows in whole.prompt_logprobs] == [length - 1 for length in LENGTHS]
    for pages, policy in ((120, "fcfs"), (22, "fcfs"), (22, "swap")):
        backend = make(model, page_size=16, pages=pages, host_pages=12, token_budget=CHUNK)
        cut = serve(backend, [*company, *asked], policy=policy, token_budget=CHUNK)
        assert cut.answers[10:] == whole.answers
        assert cut.prompt_logprobs[10:] == whole.prompt_logprobs
        assert cut.prompt_logprobs[:10] == [[]] * 10
        assert pages > 100 or cut.preemptions.total() > 0


def test_cp_1_who_leaves_between_chunks_hurts_nobody(model: Path) -> None:
    asked = [(prompt(length), 2, ASKED) for length in (192, 129, 128)]
    whole = serve(make(model, page_size=16, token_budget=256), asked, at_once=False, token_budget=256)
    cut = serve(make(model, page_size=16, token_budget=CHUNK), asked, token_budget=CHUNK, leaves={1})
    assert cut.reasons == ["length", "cancelled", "length"]
    assert 0 < len(cut.prompt_logprobs[1]) < 128
    assert cut.prompt_logprobs[1] == whole.prompt_logprobs[1][: len(cut.prompt_logprobs[1])]
    assert cut.prompt_logprobs[::2] == whole.prompt_logprobs[::2]
