"""The Llama family by kernels: the weights of ``llama.Llama``, and between its matrix products one kernel each.

Hidden states stay float32, as there; what a layer adds to them is added by the norm that comes next, so that they are
read and written once for both.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from stepwell.backends.kernels.suite import Kernels
from stepwell.backends.kv_cache import KVCache
from stepwell.backends.models.llama import Llama, rope_frequencies

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(queries [rows, heads, dim], a layer's keys and values) → [rows, heads, dim]."""

Hidden = tuple[Tensor, Tensor]
"""States [rows, hidden] float32, and what the last layer adds to them."""


class FusedLlama:
    """A model on a device.  Keys and values go to ``cache``; the last ones of a step lie there when ``attend`` is
    called."""

    def __init__(self, model: Llama, kernels: Kernels, cache: KVCache) -> None:
        assert not model.tile, "tiles are the host's"
        self._model, self._kernels, self._cache = model, kernels, cache
        self._frequencies = rope_frequencies(model.config).to(model.device)

    def forward(self, tokens: Tensor, positions: Tensor, slots: Tensor, attend: Attend) -> Hidden:
        """Every row's last hidden state, before the last norm.  ``tokens`` and ``positions`` [rows] int32, ``slots``
        [rows] int64."""
        model, kernels, config = self._model, self._kernels, self._model.config
        eps, dtype = config.norm_eps, model.dtype
        rows = len(tokens)
        states = F.embedding(tokens, model.embedding).float()
        added: Tensor | None = None
        for index, layer in enumerate(model.layers):
            keys, values = self._cache.layer(index)
            normed = kernels.add_norm(states, added, layer.attention_norm, eps, dtype)
            qkv = layer.qkv(normed).view(rows, -1, config.head_dim)
            query = kernels.rotate_and_write(qkv, positions, self._frequencies, slots, keys, values, heads=config.heads)
            added = layer.out(attend(query, keys, values).flatten(1))
            normed = kernels.add_norm(states, added, layer.mlp_norm, eps, dtype)
            added = layer.down(kernels.swiglu(layer.gate_up(normed)))
        assert added is not None
        return states, added

    def logits(self, hidden: Hidden) -> Tensor:
        """Scores over the vocabulary of each row, in the model's dtype.  The states are changed by it."""
        states, added = hidden
        model = self._model
        return model.output(self._kernels.add_norm(states, added, model.norm, model.config.norm_eps, model.dtype))


def rows_of(hidden: Hidden, rows: Tensor) -> Hidden:
    """Those rows (int64), copied."""
    states, added = hidden
    return states.index_select(0, rows), added.index_select(0, rows)
