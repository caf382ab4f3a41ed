"""A tiny random Llama, written to disk by the test in both formats, and what it computes, written out naively."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from stepwell.backends.weights.source import ModelShape
from stepwell.benchmarks.random_llama import config_json, random_weights

SHAPE = ModelShape(
    vocab_size=160,
    hidden=64,
    intermediate=96,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    context=512,
    norm_eps=2.0**-16,
    rope_theta=10_000.0,
    tied=True,
)
END = 3


def weights(shape: ModelShape = SHAPE, seed: int = 0) -> dict[str, Tensor]:
    """Random, and large enough that answers wander."""
    return random_weights(shape, seed, gain=1.5)


def write_folder(path: Path, shape: ModelShape = SHAPE, *, shards: int = 1, **changes: Any) -> Path:
    """A Hugging Face folder; ``changes`` to its config.json."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config_json(shape, END) | changes))
    made = weights(shape)
    if shards == 1:
        save_file(made, path / "model.safetensors")
        return path
    places: dict[str, str] = {}
    names = list(made)
    for index in range(shards):
        name = f"model-{index + 1:05}-of-{shards:05}.safetensors"
        mine = names[index::shards]
        save_file({each: made[each] for each in mine}, path / name)
        places |= dict.fromkeys(mine, name)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return path


_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in outer:
        return outer[stem] + ".weight"
    _, _, index, rest = stem.split(".", 3)
    return f"blk.{index}.{_GGUF_NAMES[rest]}.weight"


def write_gguf(
    path: Path,
    shape: ModelShape = SHAPE,
    kind: str = "F32",
    *,
    vocabulary: Mapping[str, Any] | None = None,
    kv_heads: list[int] | None = None,
) -> Path:
    """A GGUF file as the field's converter writes it: queries and keys with the halves of a head interleaved.

    Without a ``vocabulary`` it cannot speak: there are names of tokens and no tokenizer.  ``kv_heads``: one for each
    layer, instead of one number.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(kv_heads or shape.kv_heads)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_rope_dimension_count(shape.head_dim)
    if vocabulary is None:
        writer.add_eos_token_id(END)
        writer.add_token_list([f"t{index}" for index in range(shape.vocab_size)])
    for key, value in (vocabulary or {}).items():
        if key != "general.architecture":  # the writer's own
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    quantised = gguf.GGMLQuantizationType[kind]
    for name, tensor in weights(shape).items():
        values = tensor.numpy()
        heads = {"q_proj": shape.heads, "k_proj": shape.kv_heads}.get(name.split(".")[-2])
        if heads:
            values = values.reshape(heads, 2, shape.head_dim // 2, -1).swapaxes(1, 2).reshape(values.shape)
        values = np.ascontiguousarray(values)
        if values.ndim == 1 or kind == "F32":
            writer.add_tensor(_gguf_name(name), values)
        else:
            writer.add_tensor(_gguf_name(name), gguf.quants.quantize(values, quantised), raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def dense_logits(tokens: list[int], made: dict[str, Tensor], shape: ModelShape = SHAPE) -> Tensor:
    """Scores at every position, in float64: one request, no pages, no cache, a loop over heads."""
    wide = {name: tensor.double() for name, tensor in made.items()}
    x = wide["model.embed_tokens.weight"][tokens]
    count, half = len(tokens), shape.head_dim // 2
    angle = torch.arange(count).double()[:, None] * shape.rope_theta ** (-torch.arange(half).double() / half)

    def norm(values: Tensor, name: str) -> Tensor:
        return values / (values.square().mean(-1, keepdim=True) + shape.norm_eps).sqrt() * wide[name]

    def turn(values: Tensor) -> Tensor:
        first, second = values[:, :half], values[:, half:]
        return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], 1)

    causal = torch.full((count, count), -torch.inf).double().triu(1)
    for index in range(shape.layers):
        prefix = f"model.layers.{index}."
        y = norm(x, prefix + "input_layernorm.weight")
        query, key, value = (y @ wide[f"{prefix}self_attn.{name}_proj.weight"].T for name in "qkv")
        out = []
        for head in range(shape.heads):
            mine, shared = head * shape.head_dim, head // (shape.heads // shape.kv_heads) * shape.head_dim
            q = turn(query[:, mine : mine + shape.head_dim])
            k = turn(key[:, shared : shared + shape.head_dim])
            scores = q @ k.T / math.sqrt(shape.head_dim) + causal
            out.append(scores.softmax(-1) @ value[:, shared : shared + shape.head_dim])
        x = x + torch.cat(out, 1) @ wide[prefix + "self_attn.o_proj.weight"].T
        y = norm(x, prefix + "post_attention_layernorm.weight")
        gate = y @ wide[prefix + "mlp.gate_proj.weight"].T
        up = y @ wide[prefix + "mlp.up_proj.weight"].T
        x = x + (torch.nn.functional.silu(gate) * up) @ wide[prefix + "mlp.down_proj.weight"].T
    output = wide["model.embed_tokens.weight" if shape.tied else "lm_head.weight"]
    return norm(x, "model.norm.weight") @ output.T
