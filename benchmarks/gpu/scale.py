"""How large everything is: on a card, and where there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict


class Shape(TypedDict):
    """As ``ModelShape``, for which more has to be installed."""

    vocab_size: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    norm_eps: float
    rope_theta: float


LLAMA_3_8B = Shape(
    vocab_size=128_256,
    hidden=4096,
    intermediate=14_336,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    context=16_384,
    norm_eps=1e-5,
    rope_theta=500_000.0,
)
"""Llama 3 8B, with twice its context."""

TOY = Shape(
    vocab_size=160,
    hidden=64,
    intermediate=96,
    layers=1,
    heads=4,
    kv_heads=2,
    head_dim=16,
    context=512,
    norm_eps=1e-5,
    rope_theta=10_000.0,
)


@dataclass(frozen=True)
class Decoding:
    """So many requests that have so much context, and make so many tokens more while they are timed."""

    requests: int
    context: int
    tokens: int


@dataclass(frozen=True)
class Scale:
    """Numbers for one kind of machine.  Decode attention is (requests, context), prefill (slices, rows of each)."""

    model: Shape
    dtype: Literal["float32", "bfloat16"]
    page_size: int
    copied: int
    """Bytes of a copy that is timed, each way."""
    matrix: int
    """Rows and columns of a product that is timed."""
    rows: tuple[int, ...]
    """Rows of a step, for the kernels between products."""
    decode_checked: tuple[tuple[int, int], ...]
    decode_timed: tuple[tuple[int, int], ...]
    prefill_checked: tuple[tuple[int, int], ...]
    prefill_timed: tuple[tuple[int, int], ...]
    budget: int
    """Tokens of a step."""
    decoding: tuple[Decoding, ...]
    gap: Decoding
    prefilling: tuple[int, int]
    """Requests, and the length of their prompts."""
    sampled: int
    """Rows that are sampled together."""
    swapped: int
    """Pages that go to the host and back."""
    beside: tuple[int, int, int]
    """Requests, prompt and answer, as transformers gets them too."""


CARD = Scale(
    model=LLAMA_3_8B,
    dtype="bfloat16",
    page_size=16,
    copied=2 << 30,
    matrix=8192,
    rows=(1, 64, 2048),
    decode_checked=((3, 700), (64, 1024), (8, 8192)),
    decode_timed=((1, 1024), (16, 1024), (64, 1024), (256, 1024), (64, 8192), (128, 8192), (1024, 1024)),
    prefill_checked=((1, 1024), (5, 300)),
    prefill_timed=((1, 2048), (8, 512), (1, 8192)),
    budget=8192,
    decoding=(
        Decoding(1, 1024, 64),
        Decoding(16, 1024, 64),
        Decoding(64, 1024, 64),
        Decoding(256, 1024, 48),
        Decoding(64, 8192, 32),
    ),
    gap=Decoding(64, 1024, 64),
    prefilling=(16, 2048),
    sampled=64,
    swapped=1024,
    beside=(64, 512, 128),
)

NO_CARD = Scale(
    model=TOY,
    dtype="float32",
    page_size=8,
    copied=1 << 20,
    matrix=64,
    rows=(3,),
    decode_checked=((3, 21),),
    decode_timed=((2, 24),),
    prefill_checked=((2, 9),),
    prefill_timed=((2, 9),),
    budget=24,
    decoding=(Decoding(1, 9, 2), Decoding(2, 9, 1)),
    gap=Decoding(2, 9, 2),
    prefilling=(1, 20),
    sampled=1,
    swapped=3,
    beside=(2, 8, 3),
)
