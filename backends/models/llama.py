"""The Llama family, written for many rows at once: a row is one token of one request, at one position.

Attention is the caller's: it alone knows which rows belong together and where their keys and values lie.  Everything
else treats every row alike.  Where a row's result may not depend on its company, only what is exact (sums and products
of two numbers, copies) is done on all rows at once; the rest on tiles of a fixed height, since how sums are ordered and
how curves are approximated may depend on the number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from stepwell.backends.models.matrix import Linear, Matrix, SteadyMatrices
from stepwell.backends.weights.source import ModelShape, ModelSource, RopeScaling

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries [rows, heads, dim], keys and values [rows, kv heads, dim]) → [rows, heads, dim]."""


class _Layer:
    """Weights of one layer; matrices that are applied to the same input are one."""

    __slots__ = ("attention_norm", "down", "gate_up", "mlp_norm", "out", "qkv")

    def __init__(self, take: Callable[[str], Tensor], prefix: str, matrix: Callable[[Tensor], Linear]) -> None:
        def named(*names: str) -> Tensor:
            return torch.cat([take(f"{prefix}.{name}.weight") for name in names]).contiguous()

        self.attention_norm = named("input_layernorm").float()
        self.qkv = matrix(named("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
        self.out = matrix(named("self_attn.o_proj"))
        self.mlp_norm = named("post_attention_layernorm").float()
        self.gate_up = matrix(named("mlp.gate_proj", "mlp.up_proj"))
        self.down = matrix(named("mlp.down_proj"))


class Llama:
    """The weights, and what is computed with them.  ``tile``: a row's result does not depend on its company, and rows
    come in multiples of it; 0: in any number."""

    def __init__(self, source: ModelSource, dtype: torch.dtype, device: torch.device, tile: int = 0) -> None:
        config = self.config = source.config
        self.dtype, self.device, self.tile = dtype, device, tile
        missing = dict.fromkeys(config.parameters())

        def take(name: str) -> Tensor:
            del missing[name]  # a second taking is a mistake, and so is one of an unknown name
            return source.tensor(name).to(device=device, dtype=dtype)

        self.embedding = take("model.embed_tokens.weight").contiguous()
        matrix: Callable[[Tensor], Linear] = SteadyMatrices(tile) if tile else Matrix
        self.layers = [_Layer(take, f"model.layers.{index}", matrix) for index in range(config.layers)]
        self.norm = take("model.norm.weight").float()
        self.output = matrix(self.embedding if config.tied else take("lm_head.weight"))
        assert not missing, f"parameters never filled: {list(missing)}"
        self._frequencies = rope_frequencies(config).to(device)

    @property
    def weight_bytes(self) -> int:
        """Memory of all parameters.  A tied matrix is held twice if it is packed: rows are looked up in the other."""
        layers: list[Tensor | Linear] = [getattr(layer, name) for layer in self.layers for name in _Layer.__slots__]
        rest = [self.embedding, self.norm] + ([] if self.output.weight is self.embedding else [self.output])
        return sum(each.nbytes for each in [*rest, *layers])

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The last hidden state of every row, in float32: what layers add to it is too small for less."""
        states = F.embedding(tokens, self.embedding).float()
        turn = self._turn(positions)
        for index, layer in enumerate(self.layers):
            mixed = attend(index, *self._attention_input(layer, states, turn))
            states = self._finish(layer, states, mixed.flatten(1))
        return states

    def logits(self, states: Tensor) -> Tensor:
        """Scores over the vocabulary of each row, in float32."""
        return self.output(self._normed(states, self.norm)).float()

    def _tiled(self, work: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """What is not exact; see the module."""
        return torch.cat([work(part) for part in rows.chunk(rows.shape[0] // self.tile)]) if self.tile else work(rows)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """Root mean square norm, taken in float32."""
        return self._tiled(lambda part: F.rms_norm(part, weight.shape, weight, self.config.norm_eps), x).to(self.dtype)

    def _turn(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine of the angles by which each row's heads are turned: [rows, 1, dim]."""
        angles = positions[:, None, None].float() * self._frequencies
        cos, sin = self._tiled(torch.cos, angles), self._tiled(torch.sin, angles)
        return torch.cat((cos, cos), -1).to(self.dtype), torch.cat((-sin, sin), -1).to(self.dtype)

    def _attention_input(self, layer: _Layer, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        heads = layer.qkv(self._normed(x, layer.attention_norm)).view(x.shape[0], -1, config.head_dim)
        turning = config.heads + config.kv_heads
        query_key, value = heads[:, :turning], heads[:, turning:]
        cos, sin = turn
        turned = (query_key * cos).add_(query_key.roll(config.head_dim // 2, dims=-1).mul_(sin))
        return turned[:, : config.heads], turned[:, config.heads :], value

    def _finish(self, layer: _Layer, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + layer.out(mixed)
        gate, up = layer.gate_up(self._normed(x, layer.mlp_norm)).chunk(2, dim=-1)
        return x.add_(layer.down(self._tiled(F.silu, gate).mul_(up)))


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
