"""Steps on a device: what the host knows goes there in one small copy, tokens come back, and the rest stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from stepwell.backends.batch import Row
from stepwell.backends.device.graphs import ByHand, Decoding, Graphs, Recorder
from stepwell.backends.device.group import DeviceGroup
from stepwell.backends.device.inputs import Inputs
from stepwell.backends.device.runner import DeviceRunner
from stepwell.backends.device.sides import SideRows
from stepwell.backends.device.slices import send_slices
from stepwell.backends.device.transfer import post_of
from stepwell.backends.follow import follow
from stepwell.backends.kernels.sampling.columns import WORDS, wants_side
from stepwell.backends.kernels.suite import Kernels
from stepwell.backends.kv_cache import KVCache
from stepwell.backends.masks import Masks
from stepwell.backends.models.fused_llama import FusedLlama
from stepwell.backends.models.llama import Llama
from stepwell.backends.runner import SliceWork
from stepwell.backends.sampler import is_plain
from stepwell.backends.settling import Scores, check_finite, odd_rows, say, settle, teller
from stepwell.core.instructions import Launch
from stepwell.core.protocols import StepResult
from stepwell.core.sampling import GREEDY
from stepwell.core.types import RequestId

_AHEAD = 4
"""Positions past a request's end that it may compute before a launch says that it left."""


class DeviceStepper:
    """See ``stepper.Stepper``.  ``recorder``: how decode steps of ``sizes`` rows are recorded; None: they are not.

    The group has ``running_limit`` members at most.  ``rows`` are the live requests, the backend's own.
    """

    def __init__(
        self,
        model: Llama,
        kernels: Kernels,
        cache: KVCache,
        rows: Mapping[RequestId, Row],
        masks: Masks,
        *,
        running_limit: int,
        recorder: Recorder | None,
        sizes: Sequence[int],
    ) -> None:
        self._cache, self._rows, self._masks = cache, rows, masks
        self._vocabulary = model.config.vocab_size
        self._post = post_of(model.device)
        context = min(model.config.context, cache.pages * cache.page_size)
        width = -(-(context + _AHEAD) // cache.page_size)
        self._inputs = Inputs(running_limit, width, WORDS, cache.pages, cache.page_size, model.device)
        self._sides = SideRows(running_limit, self._vocabulary, model.device)
        self.group = DeviceGroup(self._inputs, self._sides.words)
        fused = FusedLlama(model, kernels, cache)
        self._runner = DeviceRunner(fused, kernels, self._inputs, self._sides.sides)
        self._decoding: Decoding = ByHand(self._runner.decode)
        if recorder is not None:
            with torch.inference_mode():
                self._decoding = Graphs(self._runner.decode, sizes, recorder)

    @property
    def graphs(self) -> int:
        return len(self._decoding.sizes)

    @property
    def graph_bytes(self) -> int:
        return self._decoding.nbytes

    def step(self, batch: Launch) -> StepResult:
        follow(batch, self._rows, self.group, self._cache)
        group, rows = self.group, self._rows
        self._sides.keep(lambda row: row in (rows.get(row.id), group.member(row.id)))
        result = StepResult(batch.step)
        slices = [
            SliceWork(rows[id], start, count, samples, teller(rows[id], result.prompt_logprobs))
            for id, start, count, samples in batch.slices
            if id in rows
        ]
        members = list(group.rows) if batch.decode else []
        if not members and not slices:
            return result
        sampled = [*members, *(each.row for each in slices if each.samples)]
        masks = self._masks.begin([row for row in sampled if row.id in rows])
        self._inputs.apply(group.changes(), self._post)
        if slices:
            scores, chosen = self._mixed(len(members), slices)
        else:
            self._decoding.run(len(members), group.longest)
            scores, chosen = self._runner.scores, self._runner.sampled
        letter = self._post.fetch(chosen)
        if members:
            group.advance()
        tokens, finite = letter.read()[:, : len(sampled)].tolist()
        check_finite(sampled, finite)
        allowed = None if masks is None else masks.result()
        odd = odd_rows(sampled, self._vocabulary, allowed, self._stands)
        if odd:
            settle(odd, _fetched(scores, [each.place for each in odd]), tokens, rows.__contains__, result)
            for each in odd:
                if not each.stands:
                    group.correct(each.row, tokens[each.place])
        if allowed is not None:
            result.spoiled += allowed.wrong.items()
        say(sampled, tokens, rows.__contains__, result)
        return result

    def rehearse(self, tokens: int, running: int) -> None:
        pages, size = self._cache.pages, self._cache.page_size
        lengths = [1] * (min(running, tokens) - 1)
        rest = tokens - len(lengths)
        lengths += [min(pages * size, rest - start) for start in range(0, rest, pages * size)]
        slices = []
        for index, length in enumerate(lengths):
            row = Row(index, [0] * length, GREEDY, 0, frozenset())
            row.table = list(range(pages))
            slices.append(SliceWork(row, 0, length, True))
        _, chosen = self._mixed(0, slices)
        self._post.fetch(chosen).read()
        self._runner.decode(min(running, self._inputs.rows), 0)

    def clear(self) -> None:
        self.group.clear()

    def _mixed(self, members: int, slices: Sequence[SliceWork]) -> tuple[Tensor, Tensor]:
        sent = send_slices(slices, self._sides.words, self._cache.pages, self._cache.page_size, self._post)
        scores, chosen, hidden = self._runner.mixed(members, self.group.longest, sent)
        self._runner.tell(hidden, members, slices)
        return scores, chosen

    def _stands(self, row: Row) -> bool:
        """Whether the device knows all that the row's next token depends on."""
        return not wants_side(row.sampling) or self._sides.knows(row) or is_plain(row.sampling, row.generated)


def _fetched(scores: Tensor, places: Sequence[int]) -> Iterable[Scores]:
    """Those rows, on the host."""
    found: np.ndarray[tuple[int, int], np.dtype[np.float32]] = (
        scores.index_select(0, torch.tensor(places, dtype=torch.int64, device=scores.device)).cpu().numpy()
    )
    return list(found)
