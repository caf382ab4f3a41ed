"""Writes a Llama of random weights: a real model for the backend, as small as a machine is slow.

    python -m stepwell.benchmarks.random_llama random-llama     9 million parameters, 36 MB in float32
    stepwell fidelity --model random-llama --out fidelity/
    python -m stepwell.benchmarks.random_llama random-llama --speaks     with a tokenizer, so that it can be served

What it says is noise; how long it takes to say it is what any model of that shape takes.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from stepwell.backends.weights.source import ModelShape

END = 2


def shape_of(args: argparse.Namespace) -> ModelShape:
    heads = args.hidden // 64
    return ModelShape(
        vocab_size=args.vocabulary,
        hidden=args.hidden,
        intermediate=3 * args.hidden,
        layers=args.layers,
        heads=heads,
        kv_heads=max(1, heads // 2),
        head_dim=64,
        context=2048,
        norm_eps=1e-5,
        rope_theta=10_000.0,
        tied=True,
    )


def random_weights(shape: ModelShape, seed: int, gain: float = 1.0) -> dict[str, Tensor]:
    """Norms about 1; matrices that keep the size of what goes through them, times ``gain``."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, size in shape.parameters().items():
        drawn = torch.randn(size, generator=generator)
        made[name] = 1 + 0.1 * drawn if len(size) == 1 else drawn / math.sqrt(size[-1]) * gain
    return made


def config_json(shape: ModelShape, end: int) -> dict[str, Any]:
    """The ``config.json`` of such a folder; ``end`` is the token that ends an answer."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tied,
        "eos_token_id": end,
    }


def write(path: Path, shape: ModelShape, seed: int) -> int:
    """A Hugging Face folder; returns the number of parameters."""
    path.mkdir(parents=True, exist_ok=True)
    weights = random_weights(shape, seed)
    save_file(weights, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config_json(shape, END)))
    return sum(each.numel() for each in weights.values())


def write_tokenizer(path: Path, vocabulary: int) -> None:
    """A tokenizer of bytes for a folder, and a chat template that repeats what was said; all tokens beyond 256 are
    names that no text has.
    """
    letters = sorted(ByteLevel.alphabet())
    names = [*letters, *(f"<{place}>" for place in range(len(letters), vocabulary))]
    tokenizer = Tokenizer(BPE({name: place for place, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.save(str(path / "tokenizer.json"))
    said = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": said}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden", type=int, default=256, help="a multiple of 64 (256)")
    parser.add_argument("--layers", type=int, default=8, help="(8)")
    parser.add_argument("--vocabulary", type=int, default=8192, help="(8192)")
    parser.add_argument("--seed", type=int, default=0, help="(0)")
    parser.add_argument("--speaks", action="store_true", help="write a tokenizer of bytes, too")
    args = parser.parse_args()
    print(f"{write(args.folder, shape_of(args), args.seed):,} parameters in {args.folder}")
    if args.speaks:
        write_tokenizer(args.folder, args.vocabulary)


if __name__ == "__main__":
    main()
