"""Products with packed weights, in any company, and where torch cannot pack."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `model`")

import torch.nn.functional as F  # noqa: E402

from stepwell.backends import cores  # noqa: E402
from stepwell.backends.models import matrix  # noqa: E402
from stepwell.backends.models.matrix import Matrix, SteadyMatrices, SteadyMatrix  # noqa: E402
from stepwell.backends.torch_backend import TorchBackend  # noqa: E402
from stepwell.core.sampling import SamplingParams  # noqa: E402
from stepwell.tests.backends.driving import Hand, make, watch  # noqa: E402
from stepwell.tests.backends.tiny import dense_logits, weights, write_gguf  # noqa: E402

FREE = SamplingParams(temperature=0.0, ignore_eos=True)
PROMPT = [index * 7 % 150 for index in range(30)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("tiny") / "model.gguf")


def drawn(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("rows", [1, 2, 16, 100])
def test_packed_products_are_those_of_the_plain_weight(rows: int) -> None:
    weight, given = drawn(96, 64).bfloat16(), drawn(rows, 64).bfloat16()
    expected = F.linear(given.float(), weight.float())
    with torch.inference_mode():
        assert torch.allclose(Matrix(weight)(given).float(), expected, rtol=0.01, atol=0.05)


@pytest.mark.parametrize("packs", [True, False])
def test_a_row_s_product_is_the_same_in_any_company(packs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if packs and not matrix.packs():
        pytest.skip("torch cannot pack here")
    monkeypatch.setattr(matrix, "packs", lambda: packs)
    given = drawn(16 * 45, 64)
    with torch.inference_mode():
        product = SteadyMatrices(16)(drawn(96, 64))
        tiles = torch.cat([product(part) for part in given.split(16)])
        assert torch.allclose(tiles, F.linear(given, drawn(96, 64)), atol=1e-4)
        for count in range(16, len(given) + 1, 16):
            assert torch.equal(product(given[:count]), tiles[:count]), count
            assert torch.equal(product(given[-count:]), tiles[-count:]), count


def test_heights_that_give_other_bits_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = SteadyMatrix.at_once
    monkeypatch.setattr(SteadyMatrix, "at_once", lambda self, rows: plain(self, rows) * (1 + 1e-6 * (len(rows) > 64)))
    with torch.inference_mode():
        heights = SteadyMatrices(16)(drawn(96, 64)).heights
    assert 256 not in heights
    assert heights[-1] == 16


@pytest.mark.parametrize("deterministic", [True, False])
def test_without_torch_s_own_operations_a_model_is_served_from_plain_weights(
    model: Path, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    backend = make(model, deterministic=deterministic, dtype="auto")
    assert backend.info.dtype == "float32"
    watched, hand = watch(backend), Hand(backend)
    hand.begin(1, PROMPT, 8, FREE)
    expected = dense_logits(PROMPT, weights())[-1]
    assert (watched.logits[1, len(PROMPT)].double() - expected).abs().max() < 1e-4 * expected.abs().max()


def test_bfloat16_without_packing_is_near(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "packs", lambda: False)
    backend = make(model, deterministic=False, dtype="bfloat16")
    watched = watch(backend)
    Hand(backend).begin(1, PROMPT, 8, FREE)
    expected = dense_logits(PROMPT, weights())[-1]
    assert (watched.logits[1, len(PROMPT)].double() - expected).abs().max() < 0.1 * expected.abs().max()


@pytest.mark.parametrize("packs", [True, False])
def test_a_tied_matrix_counts_twice_where_it_is_packed(
    model: Path, packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if packs and not matrix.packs():
        pytest.skip("torch cannot pack here")
    monkeypatch.setattr(matrix, "packs", lambda: packs)
    made = weights()
    extra = made["model.embed_tokens.weight"].numel() if packs else 0
    assert make(model).info.weight_bytes == 4 * (sum(tensor.numel() for tensor in made.values()) + extra)


def test_one_core_is_left_to_others(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        TorchBackend(TorchBackend.Options(path=str(model)), pages=4, token_budget=16, running_limit=2)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 32)
    for text, expected in (("max 100000", 31), ("400000 100000", 3), ("50000 100000", 1), ("", 31)):
        limit = tmp_path / "cpu.max"
        limit.write_text(text)
        monkeypatch.setattr(cores, "Path", lambda _, limit=limit: limit)
        assert cores.spare_cores() == expected
