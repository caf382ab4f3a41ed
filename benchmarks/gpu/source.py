"""A model of random weights, made on the device that it is to run on: nothing is read, nothing is carried there."""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

from stepwell.backends.weights.source import ModelShape, ModelSource
from stepwell.benchmarks.gpu.scale import Shape


def random_source(shape: Shape, device: torch.device, dtype: torch.dtype, seed: int = 0) -> ModelSource:
    """Norms are 1; matrices keep the size of what goes through them.  A tensor's numbers depend on its name and
    ``seed``, so that two models of one shape are the same model."""
    model = ModelShape(**shape)
    sizes = model.parameters()

    def read(name: str) -> Tensor:
        size = sizes[name]
        if len(size) == 1:
            return torch.ones(size, dtype=dtype, device=device)
        generator = torch.Generator(device).manual_seed(seed << 32 | zlib.crc32(name.encode()))
        drawn = torch.randn(size, generator=generator, dtype=dtype, device=device)
        return drawn.mul_(1 / math.sqrt(size[-1]))

    return ModelSource(Path("random-llama"), "folder", model, sizes, read)
