"""A Llama model from a Hugging Face folder: config.json, safetensors in one file or in shards, and the small files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import msgspec
import torch

from stepwell.backends.weights.end_tokens import FOLDER_FILES, folder_end_tokens
from stepwell.backends.weights.safetensors_file import Stored, read_header, read_tensor
from stepwell.backends.weights.source import ModelShape, ModelSource, RopeScaling, bad_model, check_config
from stepwell.core.errors import UserError

ARCHITECTURES = ("LlamaForCausalLM",)
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_LARGEST_JSON = 64 << 20

Json = Mapping[str, object]


def open_folder(path: Path) -> ModelSource:
    """Open and check a folder.  Raises ``UserError``."""
    raw = _json(path / "config.json", needed=True)
    config = _config(path, raw)
    check_config(path / "config.json", config)
    stored = _tensors(path)
    if config.tied:
        stored.pop("lm_head.weight", None)

    def read(name: str) -> torch.Tensor:
        return read_tensor(stored[name], name)

    for name in config.parameters():
        if name in stored and stored[name].dtype not in ("F64", "F32", "F16", "BF16"):
            read(name)  # names the type and the file
    small = {name: _json(path / name) for name in FOLDER_FILES}
    template = small["tokenizer_config.json"].get("chat_template")
    jinja = path / "chat_template.jinja"
    if jinja.is_file():
        template = jinja.read_text(encoding="utf-8")
    return ModelSource(
        path,
        "folder",
        config,
        {name: each.shape for name, each in stored.items()},
        read,
        chat_template=template if isinstance(template, str) else None,
        end_tokens=_end_tokens(path, small),
        files={name: each.path for name, each in stored.items()},
    )


def _end_tokens(path: Path, files: Mapping[str, Json]) -> dict[int, str]:
    try:
        return folder_end_tokens(files)
    except UserError as error:
        raise bad_model(path, str(error)) from None


def _json(path: Path, *, needed: bool = False) -> Json:
    """A JSON object, empty if the file need not be there and is not."""
    try:
        if not path.is_file() and not needed:
            return {}
        if path.stat().st_size > _LARGEST_JSON:
            raise bad_model(path, "is too large to be what its name says")
        value = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise bad_model(path, f"cannot be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_model(path, f"is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise bad_model(path, "must hold a JSON object")
    return cast(Json, value)


# ------------------------------------------------------------------------------------------------ configuration


class _Fields:
    """Typed access, with errors that name the field."""

    def __init__(self, path: Path, raw: Json) -> None:
        self.path, self.raw = path, raw

    def wrong(self, name: str, message: str) -> UserError:
        return bad_model(self.path, f"{name} {message}")

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.raw.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(name, "is missing" if value is None else f"must be an integer, got {str(value)[:60]}")
        return value

    def real(self, name: str, default: float) -> float:
        value = self.raw.get(name)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise self.wrong(name, f"must be a number, got {str(value)[:60]}")
        return float(value)


def _config(path: Path, raw: Json) -> ModelShape:
    fields = _Fields(path / "config.json", raw)
    architectures = raw.get("architectures") or []
    if not isinstance(architectures, list) or not set(map(str, architectures)) & set(ARCHITECTURES):
        known = ", ".join(ARCHITECTURES)
        raise fields.wrong("architectures", f"{architectures} is not supported; supported: {known}")
    for name, wanted in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
        if raw.get(name, wanted) not in (wanted, None):
            raise fields.wrong(name, f"{raw[name]!r} is not supported, only {wanted!r} is")
    if raw.get("quantization_config"):
        raise fields.wrong("quantization_config", "is not supported; use the model in floating point, or a GGUF file")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    theta, rope = _rope(fields)
    return ModelShape(
        vocab_size=fields.integer("vocab_size"),
        hidden=hidden,
        intermediate=fields.integer("intermediate_size"),
        layers=fields.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim", hidden // heads if heads > 0 else 0),
        context=fields.integer("max_position_embeddings", 2048),
        norm_eps=fields.real("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope=rope,
        tied=bool(raw.get("tie_word_embeddings", False)),
    )


def _rope(fields: _Fields) -> tuple[float, RopeScaling]:
    """Base frequency and scaling, in the old spelling (``rope_theta``, ``rope_scaling``) or the new one."""
    table = fields.raw.get("rope_parameters") or fields.raw.get("rope_scaling") or {}
    if not isinstance(table, dict):
        raise fields.wrong("rope_scaling", "must be an object")
    inner = _Fields(fields.path, table)
    theta = inner.real("rope_theta", fields.real("rope_theta", 10_000.0))
    kind = table.get("rope_type") or table.get("type") or "default"
    if kind == "default":
        return theta, RopeScaling()
    if kind == "linear":
        return theta, RopeScaling(kind="linear", factor=inner.real("factor", 1.0))
    if kind == "llama3":
        scaling = RopeScaling(
            kind="llama3",
            factor=inner.real("factor", 8.0),
            low_freq_factor=inner.real("low_freq_factor", 1.0),
            high_freq_factor=inner.real("high_freq_factor", 4.0),
            original_context=inner.integer("original_max_position_embeddings", 8192),
        )
        if not 0 < scaling.low_freq_factor < scaling.high_freq_factor:
            raise fields.wrong("rope_scaling", "low_freq_factor must be positive and below high_freq_factor")
        return theta, scaling
    raise fields.wrong("rope_scaling", f"of type {kind!r} is not supported; supported: default, linear, llama3")


# ------------------------------------------------------------------------------------------------ tensors


def _tensors(path: Path) -> dict[str, Stored]:
    """Every tensor of the folder, each in exactly one file."""
    if (path / SINGLE).is_file():
        return read_header(path / SINGLE)
    shards = sorted(each.name for each in path.glob("*.safetensors"))
    if not (path / INDEX).is_file():
        hint = f"; {INDEX} is missing, and the folder has {', '.join(shards)[:200]}" if shards else ""
        raise bad_model(path, f"{SINGLE} is missing{hint}")
    index = _json(path / INDEX)
    places = index.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(each, str) for each in places.values()):
        raise bad_model(path / INDEX, "weight_map must map tensors to files")
    found: dict[str, Stored] = {}
    for shard in sorted(set(places.values())):
        if Path(shard).name != shard:
            raise bad_model(path / INDEX, f"names the file {shard!r}, which is not in the folder itself")
        if not (path / shard).is_file():
            count = sum(each == shard for each in places.values())
            raise bad_model(path / shard, f"is missing; {INDEX} says that it holds {count} tensors")
        for name, stored in read_header(path / shard).items():
            if name in found:
                raise bad_model(path / shard, f"tensor {name!r} is also in {found[name].path.name}")
            found[name] = stored
    for name, shard in places.items():
        if name not in found or found[name].path.name != shard:
            raise bad_model(path / shard, f"tensor {name!r} is missing; {INDEX} says that it is here")
    return found
