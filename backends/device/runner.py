"""The forward passes of a device: a decode step on persistent inputs, and a mixed step with slices beside it.

Decode and prefill attend in two launches: a row that decodes needs its keys split over many programs, a slice needs
tall tiles of rows, and beside the products of a prefill the second launch is nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stepwell.backends.device.inputs import Inputs
from stepwell.backends.device.slices import Slices
from stepwell.backends.kernels.sampling.columns import Sides
from stepwell.backends.kernels.suite import Kernels
from stepwell.backends.models.fused_llama import FusedLlama, Hidden, rows_of
from stepwell.backends.runner import TILE, SliceWork


class DeviceRunner:
    """Made once; ``scores`` [rows, vocabulary] float32 and ``sampled`` [2, rows] (token; whether it is finite) are of
    the latest decode step, and lie where its graphs have them."""

    def __init__(self, model: FusedLlama, kernels: Kernels, inputs: Inputs, sides: Sides) -> None:
        self._model, self._kernels, self._inputs, self._sides = model, kernels, inputs, sides
        device = inputs.tokens.device
        self.scores = torch.zeros((inputs.rows, sides.vocabulary), dtype=torch.float32, device=device)
        self.sampled = torch.zeros((2, inputs.rows), dtype=torch.int32, device=device)

    def decode(self, rows: int, longest: int) -> None:
        """A step of the group, all of it on the device; nothing asks what is in a tensor, so it can be recorded."""
        inputs = self._inputs
        tables, lengths = inputs.tables[:rows], inputs.lengths[:rows]

        def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return self._kernels.paged_decode(query, keys, values, tables, lengths, longest=longest)

        hidden = self._model.forward(inputs.tokens[:rows], inputs.positions[:rows], inputs.slots(rows), attend)
        scores = self.scores[:rows].copy_(self._model.logits(hidden))
        tokens, finite = self._kernels.sample(scores, inputs.sampling[:, :rows], lengths, sides=self._sides)
        self.sampled[0, :rows], self.sampled[1, :rows] = tokens, finite
        inputs.advance(self.sampled[0, :rows])

    def mixed(self, members: int, longest: int, slices: Slices) -> tuple[Tensor, Tensor, Hidden]:
        """The group's first ``members`` and the slices.  Returns scores and sampled tokens of the members and of the
        slices that sample, and the hidden states of all rows.  Of a row in the group the inputs are brought on."""
        inputs, kernels = self._inputs, self._kernels
        tables, lengths = inputs.tables[:members], inputs.lengths[:members]

        def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            out = torch.empty_like(query)
            if members:
                kernels.paged_decode(query[:members], keys, values, tables, lengths, longest=longest, out=out[:members])
            kernels.paged_prefill(
                query[members:],
                keys,
                values,
                slices.tables,
                slices.firsts,
                slices.starts,
                longest_slice=slices.longest,
                out=out[members:],
            )
            return out

        hidden = self._model.forward(
            torch.cat([inputs.tokens[:members], slices.tokens]),
            torch.cat([inputs.positions[:members], slices.positions]),
            torch.cat([inputs.slots(members), slices.slots]),
            attend,
        )
        members_too = torch.arange(members, device=slices.last.device)
        wanted = torch.cat([members_too, slices.last + members])
        scores = self._model.logits(rows_of(hidden, wanted)).float() if len(wanted) else self.scores[:0]
        words = torch.cat([inputs.sampling[:, :members], slices.sampling], 1)
        known = torch.cat([lengths, slices.lengths])
        sampled = torch.stack(kernels.sample(scores, words, known, sides=self._sides)).int()
        inputs.advance(sampled[0, :members])
        return scores, sampled, hidden

    def tell(self, hidden: Hidden, members: int, work: Sequence[SliceWork]) -> None:
        """Whoever wants the scores of a prompt's own tokens; a few rows at a time, as a whole prompt's would fill the
        memory."""
        at = members
        for each in work:
            if each.told is not None:
                count = min(each.count, each.row.prompt_tokens - 1 - each.start)  # the last one is about the answer
                for first in range(0, count, TILE):
                    last = min(first + TILE, count)
                    rows = torch.arange(at + first, at + last, device=self.scores.device)
                    each.told(each.start + first, self._model.logits(rows_of(hidden, rows)).float())
            at += each.count
