"""A Llama model from a GGUF file: keys and tensor names translated, quantised blocks turned into floating point."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from stepwell.backends.weights.end_tokens import gguf_end_tokens
from stepwell.backends.weights.gguf_file import GgufFile, GgufTensor, read_gguf
from stepwell.backends.weights.source import ModelShape, ModelSource, RopeScaling, bad_model, check_config
from stepwell.core.errors import UserError

ARCHITECTURES = ("llama",)

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_DIVISORS = "rope_freqs.weight"


class _Keys:
    """Typed access to the metadata, with errors that name the key."""

    def __init__(self, path: Path, metadata: Mapping[str, object], architecture: str) -> None:
        self.path, self.metadata, self.prefix = path, metadata, architecture

    def wrong(self, key: str, message: str) -> UserError:
        return bad_model(self.path, f"metadata {key!r} {message}")

    def integer(self, name: str, default: int | None = None) -> int:
        key = f"{self.prefix}.{name}"
        value = self.metadata.get(key, default)
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]  # one number for each layer, all the same
        if value is None:
            raise self.wrong(key, "is missing")
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(key, f"must be one integer, got {str(value)[:60]}")
        return value

    def real(self, name: str, default: float) -> float:
        key = f"{self.prefix}.{name}"
        value = self.metadata.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.wrong(key, f"must be a number, got {str(value)[:60]}")
        return float(value)


def open_gguf(path: Path) -> ModelSource:
    """Open and check a GGUF file.  Raises ``UserError``."""
    file = read_gguf(path)
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise bad_model(path, f"architecture {architecture!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
    names = _names(file)
    config = _config(path, file)
    check_config(path, config)
    kinds = _unsupported(file)
    if kinds:
        raise bad_model(path, f"quantisation that cannot be read: {', '.join(kinds)}")

    def read(name: str) -> torch.Tensor:
        return _read(file, file.tensors[names[name]], name, config)

    template = file.metadata.get("tokenizer.chat_template")
    return ModelSource(
        path,
        "gguf",
        config,
        {name: file.tensors[theirs].shape for name, theirs in names.items()},
        read,
        gguf_metadata=file.metadata,
        chat_template=template if isinstance(template, str) else None,
        end_tokens=_end_tokens(path, file),
    )


def _end_tokens(path: Path, file: GgufFile) -> dict[int, str]:
    try:
        return gguf_end_tokens(file.metadata)
    except UserError as error:
        raise bad_model(path, f"metadata {error}") from None


def _names(file: GgufFile) -> dict[str, str]:
    """Canonical name → the file's; tensors that we do not know keep theirs."""
    names: dict[str, str] = {}
    for theirs in file.tensors:
        parts = theirs.split(".")
        if theirs in _OUTER:
            names[_OUTER[theirs]] = theirs
        elif len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER and parts[3] == "weight":
            names[f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.weight"] = theirs
        elif theirs != _DIVISORS:
            names[theirs] = theirs
    return names


def _config(path: Path, file: GgufFile) -> ModelShape:
    keys = _Keys(path, file.metadata, "llama")
    if keys.integer("expert_count", 0):
        raise bad_model(path, "mixtures of experts are not supported")
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None and len(embedding.shape) == 2:
        vocabulary = embedding.shape[0]
    else:
        vocabulary = keys.integer("vocab_size", len(tokens) if isinstance(tokens, list) else None)
    head_dim = keys.integer("attention.key_length", hidden // heads if heads > 0 else 0)
    if keys.integer("rope.dimension_count", head_dim) != head_dim:
        raise bad_model(path, "rotary positions on a part of each head are not supported")
    return ModelShape(
        vocab_size=vocabulary,
        hidden=hidden,
        intermediate=keys.integer("feed_forward_length"),
        layers=keys.integer("block_count"),
        heads=heads,
        kv_heads=keys.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        context=keys.integer("context_length"),
        norm_eps=keys.real("attention.layer_norm_rms_epsilon", 1e-5),
        rope_theta=keys.real("rope.freq_base", 10_000.0),
        rope=_rope(path, file, keys, head_dim),
        tied="output.weight" not in file.tensors,
    )


def _rope(path: Path, file: GgufFile, keys: _Keys, head_dim: int) -> RopeScaling:
    divisors = file.tensors.get(_DIVISORS)
    if divisors is not None:
        if divisors.shape != (head_dim // 2,) or divisors.kind != GGMLQuantizationType.F32:
            raise bad_model(path, f"tensor {_DIVISORS!r} must be {head_dim // 2} numbers of float32")
        return RopeScaling(kind="divisors", frequency_divisors=tuple(_floats(file, divisors).tolist()))
    kind = file.metadata.get("llama.rope.scaling.type", "none")
    if kind == "linear":
        return RopeScaling(kind="linear", factor=keys.real("rope.scaling.factor", 1.0))
    if kind != "none":
        raise bad_model(path, f"rope scaling {kind!r} is not supported (linear, and divisors in the file, are)")
    return RopeScaling()


def _unsupported(file: GgufFile) -> list[str]:
    """Kinds of tensor that the gguf package cannot turn into floating point."""
    kinds = sorted({tensor.kind for tensor in file.tensors.values()})
    bad: list[str] = []
    for kind in kinds:
        if kind in _PLAIN:
            continue
        try:
            dequantize(np.zeros((1, 0), np.uint8), kind)
        except NotImplementedError:
            bad.append(kind.name)
        except Exception:  # an empty block is refused by some kinds, but only after they were found
            continue
    return bad


_Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
_PLAIN: dict[GGMLQuantizationType, np.dtype[np.floating]] = {
    GGMLQuantizationType.F32: np.dtype(np.float32),
    GGMLQuantizationType.F16: np.dtype(np.float16),
    GGMLQuantizationType.F64: np.dtype(np.float64),
}


def _floats(file: GgufFile, tensor: GgufTensor) -> _Floats:
    raw = file.data[tensor.start : tensor.start + tensor.size]
    if tensor.kind in _PLAIN:
        numbers = np.frombuffer(raw.tobytes(), _PLAIN[tensor.kind])
        return numbers.astype(np.float32).reshape(tensor.shape)
    rows = 1
    for size in tensor.shape[:-1]:
        rows *= size
    with np.errstate(all="ignore"):  # corrupt scales overflow; whoever reads the result looks for that
        values = dequantize(np.ascontiguousarray(raw).reshape(rows, -1), tensor.kind)
    return values.astype(np.float32, copy=False).reshape(tensor.shape)


def _read(file: GgufFile, tensor: GgufTensor, name: str, config: ModelShape) -> torch.Tensor:
    values = _floats(file, tensor)
    heads = {"q_proj": config.heads, "k_proj": config.kv_heads}.get(name.rpartition(".weight")[0].rpartition(".")[2])
    if heads is not None:
        # The converter interleaves the two halves of every head; Hugging Face keeps them one after the other.
        halves = values.reshape(heads, config.head_dim // 2, 2, -1)
        values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(tensor.shape)
    return torch.from_numpy(values)
