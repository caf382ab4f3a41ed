"""Where a model is computed, and in which numbers."""

from __future__ import annotations

from typing import Literal

import torch

from stepwell.backends.models.llama import Llama
from stepwell.backends.models.matrix import has_bfloat16
from stepwell.backends.runner import TILE
from stepwell.core.errors import UserError

Dtype = Literal["auto", "float32", "bfloat16"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def device_of(name: str) -> torch.device:
    """Raises ``UserError`` for one that cannot be used."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name!r} cannot be used: {reason}", field="options.device") from None
    return device


def dtype_of(asked: Dtype, device: torch.device, *, deterministic: bool) -> torch.dtype:
    """``auto``: bfloat16 where it is multiplied, float32 if deterministic.  Raises ``UserError`` for what cannot be."""
    if asked != "auto":
        if deterministic and asked != "float32":
            raise UserError("deterministic needs float32", field="model.dtype")
        return _DTYPES[asked]
    if deterministic:
        return torch.float32
    return torch.bfloat16 if device.type == "cuda" or has_bfloat16() else torch.float32


@torch.inference_mode()
def check_rows_alike(model: Llama) -> None:
    """The premise of tiles, tested on the model itself: equal rows of a tile give equal results, wherever they are."""
    tokens = torch.zeros(TILE, dtype=torch.int64, device=model.device)

    def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.repeat_interleave(query.shape[1] // value.shape[1], 1)

    logits = model.logits(model.forward(tokens, tokens, attend))
    if not torch.equal(logits, logits[:1].expand_as(logits)):
        raise UserError("this machine's products depend on a row's place in its tile", field="model.deterministic")
