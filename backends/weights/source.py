"""What a model's files say, whatever their format: the shape of the model, its tensors by name, its end tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
import torch

from stepwell.core.errors import UserError

FIELD = "model.path"
"""What errors name: the setting that holds the model's path."""


def bad_model(path: Path, message: str) -> UserError:
    """The one error of this folder: a file of the model is wrong, and how."""
    return UserError(f"{path}: {message}", field=FIELD)


class RopeScaling(msgspec.Struct, frozen=True):
    """How positions are stretched beyond the context that the model was trained on.

    ``linear`` divides every frequency by ``factor``; ``llama3`` only the low ones, blending between the two bounds.
    ``frequency_divisors`` are given outright by some files, and then used instead.
    """

    kind: Literal["none", "linear", "llama3", "divisors"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    frequency_divisors: tuple[float, ...] = ()


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the Llama family."""

    vocab_size: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope: RopeScaling = RopeScaling()
    tied: bool = False
    """The output matrix is the embedding."""

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Every parameter's canonical name (those of Hugging Face) and shape."""
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = {
            "input_layernorm": (self.hidden,),
            "self_attn.q_proj": (wide, self.hidden),
            "self_attn.k_proj": (narrow, self.hidden),
            "self_attn.v_proj": (narrow, self.hidden),
            "self_attn.o_proj": (self.hidden, wide),
            "post_attention_layernorm": (self.hidden,),
            "mlp.gate_proj": (self.intermediate, self.hidden),
            "mlp.up_proj": (self.intermediate, self.hidden),
            "mlp.down_proj": (self.hidden, self.intermediate),
        }
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, self.hidden)}
        for index in range(self.layers):
            shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
        shapes["model.norm.weight"] = (self.hidden,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden)
        return shapes


MOST = 1 << 24
"""No width, count or context of a model is larger; a file that says so is corrupt."""


def check_config(path: Path, config: ModelShape) -> None:
    """Raise ``UserError`` for numbers that no model has."""
    for name in ("vocab_size", "hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "context"):
        value = getattr(config, name)
        if not 0 < value <= MOST:
            raise bad_model(path, f"{name} must be between 1 and {MOST}, got {value}")
    if config.layers > 10_000:
        raise bad_model(path, f"says that it has {config.layers} layers; at most 10,000 are believed")
    if config.heads % config.kv_heads:
        raise bad_model(path, f"{config.heads} heads cannot share {config.kv_heads} key-value heads evenly")
    if config.head_dim % 2:
        raise bad_model(path, f"the head dimension must be even for rotary positions, got {config.head_dim}")
    for what, number in (("rms_norm_eps", config.norm_eps), ("rope_theta", config.rope_theta)):
        if not 0 < number < 1e12:
            raise bad_model(path, f"{what} must be positive, got {number}")
    if not 0 < config.rope.factor < 1e6:
        raise bad_model(path, f"the factor of rope_scaling must be positive, got {config.rope.factor}")


class ModelSource:
    """An opened model: complete, checked, not yet read.

    ``gguf_metadata`` is empty for a folder; ``chat_template`` is None where the model brings none (a folder's tokenizer
    files may still do).  ``end_tokens`` is the union that ``end_tokens.py`` computes.  ``extra`` names tensors that no
    parameter takes; ``files`` says which file a tensor is in, where there are several.
    """

    def __init__(
        self,
        path: Path,
        kind: Literal["gguf", "folder"],
        config: ModelShape,
        shapes: Mapping[str, tuple[int, ...]],
        read: Callable[[str], torch.Tensor],
        *,
        gguf_metadata: Mapping[str, object] | None = None,
        chat_template: str | None = None,
        end_tokens: Mapping[int, str] | None = None,
        files: Mapping[str, Path] | None = None,
    ) -> None:
        self.path = path
        self.kind = kind
        self.config = config
        self.gguf_metadata: Mapping[str, object] = gguf_metadata or {}
        self.chat_template = chat_template
        self.end_tokens = frozenset(end_tokens or ())
        self._read = read
        self._files = files or {}
        wanted = config.parameters()
        self.extra = tuple(sorted(name for name in shapes if name not in wanted))
        for name, shape in wanted.items():
            found = shapes.get(name)
            if found is None:
                raise bad_model(path, f"tensor {name!r} {list(shape)} is missing")
            if found != shape:
                raise self._wrong(name, f"has shape {list(found)}, expected {list(shape)}")
        for token, key in (end_tokens or {}).items():
            if token >= config.vocab_size:
                raise bad_model(path, f"{key}: end token {token} is outside the vocabulary of {config.vocab_size}")

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is odd about the files, though the model is complete; whoever opened them shows it."""
        if not self.extra:
            return ()
        shown = ", ".join(self.extra[:5]) + (" …" if len(self.extra) > 5 else "")
        return (f"{self.path}: {len(self.extra)} tensors are not used: {shown}",)

    @property
    def name(self) -> str:
        """A name to show: the file's, or the folder's."""
        return self.path.stem if self.kind == "gguf" else self.path.resolve().name

    def tensor(self, name: str) -> torch.Tensor:
        """The parameter of that canonical name, in floating point."""
        tensor = self._read(name)
        low, high = torch.aminmax(tensor)  # a tenth of the time of asking every number
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise self._wrong(name, "holds numbers that are not finite")
        return tensor

    def _wrong(self, name: str, message: str) -> UserError:
        return bad_model(self._files.get(name, self.path), f"tensor {name!r} {message}")
