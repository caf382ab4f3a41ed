"""Models on disk: both formats give the same numbers, and every damage is named before anything is served."""

from __future__ import annotations

import json
import os
import random
import struct
import tracemalloc
from pathlib import Path

import msgspec
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `model`")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor  # noqa: E402

from stepwell.backends.models.llama import Llama, rope_frequencies  # noqa: E402
from stepwell.backends.weights.gguf_file import read_gguf  # noqa: E402
from stepwell.backends.weights.opening import open_model  # noqa: E402
from stepwell.backends.weights.source import RopeScaling  # noqa: E402
from stepwell.core.errors import UserError  # noqa: E402
from stepwell.tests.backends.tiny import END, SHAPE, weights, write_folder, write_gguf  # noqa: E402

CPU = torch.device("cpu")


def refused(path: Path, *words: str) -> None:
    """Opening and reading ``path`` is refused with a message that has all ``words``."""
    with pytest.raises(UserError) as caught:
        Llama(open_model(path), torch.float32, CPU)
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize("tied", [True, False])
def test_both_formats_hold_the_same_model(tmp_path: Path, tied: bool) -> None:
    shape = msgspec.structs.replace(SHAPE, tied=tied)
    folder = open_model(write_folder(tmp_path / "folder", shape, shards=3))
    single = open_model(write_gguf(tmp_path / "model.gguf", shape))
    assert folder.config == single.config == shape
    assert folder.end_tokens == single.end_tokens == {END}
    for name, tensor in weights(shape).items():
        assert torch.equal(folder.tensor(name), tensor)
        assert torch.equal(single.tensor(name), tensor), name


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_matrices_are_near_the_original(tmp_path: Path, kind: str) -> None:
    source = open_model(write_gguf(tmp_path / "model.gguf", kind=kind))
    for name, tensor in weights().items():
        worst = (source.tensor(name) - tensor).abs().max() / tensor.abs().max()
        assert worst < (0.01 if kind in ("F16", "BF16", "Q8_0") else 0.15), name


def test_rope_scaling_of_llama_3_keeps_short_waves_and_stretches_long_ones(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config = open_model(write_folder(tmp_path, rope_scaling=scaling)).config
    plain = rope_frequencies(SHAPE)
    scaled = rope_frequencies(config)
    assert config.rope == RopeScaling(kind="llama3", factor=8.0, original_context=64)
    assert torch.equal(scaled[0], plain[0])
    assert torch.allclose(scaled[-1], plain[-1] / 8)
    assert ((plain / 8 <= scaled * 1.0001) & (scaled <= plain * 1.0001)).all()
    linear = open_model(write_folder(tmp_path, rope_scaling={"type": "linear", "factor": 4.0})).config
    assert torch.allclose(rope_frequencies(linear), plain / 4)
    refused(write_folder(tmp_path, rope_scaling={"type": "yarn", "factor": 4.0}), "yarn", "linear, llama3")


def test_eo_1_end_tokens_are_the_union_of_all_sources(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, eos_token_id=[5])
    (folder / "generation_config.json").write_text('{"eos_token_id": [7]}')
    (folder / "tokenizer_config.json").write_text(
        '{"eos_token": {"content": "</s>"}, "added_tokens_decoder": {"2": {"content": "</s>"}}}'
    )
    assert open_model(folder).end_tokens == {2, 5, 7}


# ------------------------------------------------------------------------------------------------ ML-1


def test_ml_1_a_shard_cut_short_is_named_with_both_sizes(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, shards=2)
    shard = folder / "model-00002-of-00002.safetensors"
    size = shard.stat().st_size
    os.truncate(shard, size - 1024)
    refused(folder, shard.name, "tensor", str(size), str(size - 1024))


def test_ml_1_a_missing_shard_and_a_missing_index_are_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, shards=3)
    (folder / "model-00003-of-00003.safetensors").unlink()
    refused(folder, "model-00003-of-00003.safetensors", "missing")
    (folder / "model.safetensors.index.json").unlink()
    refused(folder, "model.safetensors.index.json is missing")


def test_ml_1_an_index_that_names_what_no_file_has(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, shards=2)
    index = folder / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": places | {"ghost": "model-00001-of-00002.safetensors"}}))
    refused(folder, "ghost", "model-00001-of-00002.safetensors")
    index.write_text(json.dumps({"weight_map": places | {"ghost": "../model.safetensors"}}))
    refused(folder, "not in the folder itself")


def test_ml_1_a_tensor_in_two_shards_and_one_in_none(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, shards=2)
    first, second = (folder / f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    one, other = load_file(first), load_file(second)
    save_file(other | {"model.embed_tokens.weight": one["model.embed_tokens.weight"]}, second)
    refused(folder, "model.embed_tokens.weight", "also in", first.name)
    lone = write_folder(tmp_path / "lone")
    kept = load_file(lone / "model.safetensors")
    del kept["model.layers.1.mlp.up_proj.weight"]
    save_file(kept, lone / "model.safetensors")
    refused(lone, "model.layers.1.mlp.up_proj.weight", "missing", "[96, 64]")


def test_ml_1_extra_and_empty_tensors_warn_once_and_load(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    assert open_model(folder).warnings == ()
    save_file(weights() | {"extra": torch.ones(2), "empty": torch.ones(0, 4)}, folder / "model.safetensors")
    source = open_model(folder)
    assert source.extra == ("empty", "extra")
    (warning,) = source.warnings
    assert "2 tensors are not used: empty, extra" in warning
    Llama(source, torch.float32, CPU)


def test_ml_1_wrong_shapes_types_and_numbers_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    made = weights()
    name = "model.norm.weight"
    save_file(made | {name: torch.ones(65)}, folder / "model.safetensors")
    refused(folder, name, "[65]", "[64]")
    save_file(made | {name: torch.ones(64, dtype=torch.int32)}, folder / "model.safetensors")
    refused(folder, name, "I32")
    save_file(made | {name: torch.full((64,), torch.nan)}, folder / "model.safetensors")
    refused(folder, name, "not finite")


def test_ml_1_symbolic_links_to_a_folder_and_to_files_outside_load(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "real", shards=2)
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "links").mkdir()
    for file in folder.iterdir():
        (tmp_path / "links" / file.name).symlink_to(file)
    for path in (tmp_path / "link", tmp_path / "links"):
        Llama(open_model(path), torch.float32, CPU)


def test_ml_1_every_parameter_is_filled_exactly_once(tmp_path: Path) -> None:
    """And a model in one file needs no index."""
    source = open_model(write_folder(tmp_path))
    read: list[str] = []
    tensor = source.tensor

    def noted(name: str) -> Tensor:
        read.append(name)
        return tensor(name)

    source.tensor = noted  # type: ignore[method-assign]
    Llama(source, torch.float32, CPU)
    assert sorted(read) == sorted(SHAPE.parameters())
    assert not (tmp_path / "model.safetensors.index.json").exists()


def test_ml_5_one_number_for_each_layer_is_that_number_if_all_are_the_same(tmp_path: Path) -> None:
    """Per-layer arrays where a number is usual: taken if every layer has the same, refused with the key if not."""
    assert open_model(write_gguf(tmp_path / "same.gguf", kv_heads=[2, 2])).config == SHAPE
    other = write_gguf(tmp_path / "other.gguf", kv_heads=[2, 4])
    refused(other, "other.gguf", "llama.attention.head_count_kv", "[2, 4]")


def test_what_is_not_supported_is_named(tmp_path: Path) -> None:
    refused(write_folder(tmp_path, architectures=["GPT2LMHeadModel"]), "GPT2LMHeadModel", "LlamaForCausalLM")
    refused(write_folder(tmp_path, hidden_act="gelu"), "hidden_act", "gelu")
    refused(write_folder(tmp_path, num_attention_heads=0), "heads")
    refused(write_folder(tmp_path, hidden_size="wide"), "hidden_size")
    refused(tmp_path / "nothing", "no such file")


# ------------------------------------------------------------------------------------------------ ML-4


def header(*pairs: bytes, tensors: bytes = b"", count: int = 0, tail: int = 4096) -> bytes:
    raw = b"GGUF" + struct.pack("<IQQ", 3, count, len(pairs)) + b"".join(pairs) + tensors
    return raw + bytes(tail)


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


def tensor(dims: list[int], kind: int = 0, offset: int = 0, name: bytes = b"t", count: int | None = None) -> bytes:
    raw = struct.pack("<Q", len(name)) + name + struct.pack("<I", len(dims) if count is None else count)
    return raw + struct.pack(f"<{len(dims)}QIQ", *dims, kind, offset)


NESTED = struct.pack("<IQ", 9, 1) * 1000
BAD = {
    "n_dims 4e9": header(tensors=tensor([4], count=4_000_000_000), count=1),
    "product wraps to zero": header(tensors=tensor([4, 2**30 - 1, 2**30 + 1]), count=1),
    "dim of 0": header(tensors=tensor([4, 0]), count=1),
    "empty key": header(pair(b"", 4, bytes(4))),
    "duplicate key": header(pair(b"a", 4, bytes(4)), pair(b"a", 4, bytes(4))),
    "alignment 0": header(pair(b"general.alignment", 4, bytes(4))),
    "alignment 3": header(pair(b"general.alignment", 4, struct.pack("<I", 3))),
    "alignment of wrong type": header(pair(b"general.alignment", 10, struct.pack("<Q", 32))),
    "string of 2^63": header(pair(b"a", 8, struct.pack("<Q", 1 << 63))),
    "array of 2^63": header(pair(b"a", 9, struct.pack("<IQ", 4, 1 << 63))),
    "array of strings of 2^40": header(pair(b"a", 9, struct.pack("<IQ", 8, 1 << 40))),
    "array nested 1,000 deep": header(pair(b"a", 9, NESTED)),
    "unknown value type": header(pair(b"a", 77, bytes(8))),
    "offset past the end": header(tensors=tensor([4], offset=1 << 20), count=1),
    "offset not aligned": header(tensors=tensor([4], offset=8), count=1),
    "overlapping tensors": header(tensors=tensor([64], name=b"a") + tensor([64], name=b"b", offset=32), count=2),
    "tensor twice": header(tensors=tensor([8], name=b"a") + tensor([8], name=b"a", offset=32), count=2),
    "unknown tensor type": header(tensors=tensor([4], kind=999), count=1),
    "half a block": header(tensors=tensor([33], kind=2), count=1),
    "2^60 tensors": b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0),
    "2^60 keys": b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
    "version 9": b"GGUF" + struct.pack("<IQQ", 9, 0, 0),
    "nothing": b"",
    "not GGUF": b"PK\x03\x04" + bytes(100),
}


@pytest.mark.parametrize("what", BAD)
def test_ml_4_a_crafted_file_is_a_typed_error(tmp_path: Path, what: str) -> None:
    """And costs next to nothing: sizes are compared with the file before anything is taken for them."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(BAD[what])
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"bad\.gguf"):
            read_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_ml_4_a_file_cut_at_every_byte_of_its_header(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf")
    whole = path.read_bytes()
    for end in range(min(each.start for each in read_gguf(path).tensors.values()) - 1, -1, -1):
        os.truncate(path, end)
        with pytest.raises(UserError):
            read_gguf(path)
    path.write_bytes(whole[:-1024])
    with pytest.raises(UserError, match="cut short"):
        read_gguf(path)


def flip_bits(tmp_path: Path, times: int) -> int:
    """Flips one bit of the header at a time; returns how many files were refused.  Anything but a ``UserError`` or a
    model that loads breaks the test."""
    path = write_gguf(tmp_path / "flipped.gguf")
    whole = path.read_bytes()
    first = min(each.start for each in read_gguf(path).tensors.values())
    dice = random.Random(4)
    refusals = 0
    with path.open("r+b", buffering=0) as file:
        for _ in range(times):
            place, bit = dice.randrange(first), 1 << dice.randrange(8)
            os.pwrite(file.fileno(), bytes([whole[place] ^ bit]), place)
            try:
                source = open_model(path)
                source.tensor("model.norm.weight")
            except UserError:
                refusals += 1
            os.pwrite(file.fileno(), whole[place : place + 1], place)
    return refusals


def test_ml_4_random_bit_flips(tmp_path: Path) -> None:
    assert flip_bits(tmp_path, 200) > 20


@pytest.mark.slow
def test_ml_4_many_random_bit_flips(tmp_path: Path) -> None:
    assert flip_bits(tmp_path, 10_000) > 1000
