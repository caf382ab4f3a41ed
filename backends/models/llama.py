"""The Llama family, written for many rows at once: a row is one token of one request, at one position.

Attention is the caller's: it alone knows which rows belong together and where their keys and values lie.  Everything
else treats every row alike, and in tiles: one tile of all rows normally, tiles of a fixed height where a row's result
may not depend on its company.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from stepwell.backends.models.matrix import Matrix
from stepwell.backends.weights.source import ModelShape, ModelSource, RopeScaling

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries [rows, heads, dim], keys and values [rows, kv heads, dim]) → [rows, heads, dim]."""


class _Layer:
    """Weights of one layer; matrices that are applied to the same input are one."""

    __slots__ = ("attention_norm", "down", "gate_up", "mlp_norm", "out", "qkv")

    def __init__(self, take: Callable[[str], Tensor], prefix: str) -> None:
        def named(*names: str) -> Tensor:
            return torch.cat([take(f"{prefix}.{name}.weight") for name in names]).contiguous()

        self.attention_norm = named("input_layernorm")
        self.qkv = Matrix(named("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
        self.out = Matrix(named("self_attn.o_proj"))
        self.mlp_norm = named("post_attention_layernorm")
        self.gate_up = Matrix(named("mlp.gate_proj", "mlp.up_proj"))
        self.down = Matrix(named("mlp.down_proj"))


class Llama:
    """The weights, and what is computed with them.  ``tile`` rows are computed together; 0: all."""

    def __init__(self, source: ModelSource, dtype: torch.dtype, device: torch.device, tile: int = 0) -> None:
        config = self.config = source.config
        self.dtype, self.device, self.tile = dtype, device, tile
        missing = dict.fromkeys(config.parameters())

        def take(name: str) -> Tensor:
            del missing[name]  # a second taking is a mistake, and so is one of an unknown name
            return source.tensor(name).to(device=device, dtype=dtype)

        self.embedding = take("model.embed_tokens.weight").contiguous()
        self.layers = [_Layer(take, f"model.layers.{index}") for index in range(config.layers)]
        self.norm = take("model.norm.weight")
        self.output = Matrix(self.embedding if config.tied else take("lm_head.weight"))
        assert not missing, f"parameters never filled: {list(missing)}"
        self._frequencies = rope_frequencies(config).to(device)

    @property
    def weight_bytes(self) -> int:
        """Memory of all parameters, a tied matrix counted once."""
        layers: list[Tensor | Matrix] = [getattr(layer, name) for layer in self.layers for name in _Layer.__slots__]
        rest = [self.embedding, self.norm] + ([] if self.config.tied else [self.output])
        return sum(each.nbytes for each in [*rest, *layers])

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The last hidden state of every row.  With tiles, the rows are a multiple of their height."""
        tiles = tokens.shape[0] // self.tile if self.tile else 1
        states = list(F.embedding(tokens, self.embedding).chunk(tiles))
        turns = [self._turn(each) for each in positions.chunk(tiles)]
        for index, layer in enumerate(self.layers):
            split = [self._attention_input(layer, state, turn) for state, turn in zip(states, turns, strict=True)]
            if tiles == 1:
                mixed = [attend(index, *split[0]).flatten(1)]
            else:
                parts = [torch.cat(each) for each in zip(*split, strict=True)]
                mixed = list(attend(index, *parts).flatten(1).chunk(tiles))
            states = [self._finish(layer, state, each) for state, each in zip(states, mixed, strict=True)]
        return states[0] if tiles == 1 else torch.cat(states)

    def logits(self, states: Tensor) -> Tensor:
        """Scores over the vocabulary of each row, in float32."""
        tiles = states.shape[0] // self.tile if self.tile else 1
        out = [self.output(self._normed(each, self.norm)).float() for each in states.chunk(tiles)]
        return out[0] if tiles == 1 else torch.cat(out)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """Root mean square norm, its mean taken in float32."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.norm_eps)
        return (wide * scale).to(x.dtype) * weight

    def _turn(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine of the angles by which each row's heads are turned: [rows, 1, dim]."""
        angles = positions[:, None, None].float() * self._frequencies
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), -1).to(self.dtype), torch.cat((-sin, sin), -1).to(self.dtype)

    def _attention_input(self, layer: _Layer, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        heads = layer.qkv(self._normed(x, layer.attention_norm)).view(x.shape[0], -1, config.head_dim)
        turning = config.heads + config.kv_heads
        query_key, value = heads[:, :turning], heads[:, turning:]
        cos, sin = turn
        turned = torch.addcmul(query_key * cos, query_key.roll(config.head_dim // 2, dims=-1), sin)
        return turned[:, : config.heads], turned[:, config.heads :], value

    def _finish(self, layer: _Layer, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + layer.out(mixed)
        gate, up = layer.gate_up(self._normed(x, layer.mlp_norm)).chunk(2, dim=-1)
        return x + layer.down(F.silu(gate) * up)


def rope_frequencies(config: ModelShape) -> Tensor:
    """Angle per position of each pair of a head's dimensions, in float32."""
    dim, rope = config.head_dim, config.rope
    plain = 1.0 / config.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "divisors":
        return plain / torch.tensor(rope.frequency_divisors, dtype=torch.float32)
    if rope.kind == "llama3":
        return _llama3(plain, rope)
    return plain


def _llama3(plain: Tensor, rope: RopeScaling) -> Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended."""
    lengths = 2 * math.pi / plain
    share = (rope.original_context / lengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    share = share.clamp(0, 1)
    return (1 - share) * plain / rope.factor + share * plain
