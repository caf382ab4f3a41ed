"""Steps as the processor takes them: the group's columns are numpy's, and tokens are chosen beside the scores."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from stepwell.backends.batch import DecodeGroup, Row
from stepwell.backends.follow import follow
from stepwell.backends.kv_cache import KVCache
from stepwell.backends.masks import Masks
from stepwell.backends.runner import Runner, SliceWork, StepWork
from stepwell.backends.sampler import is_plain
from stepwell.backends.settling import check_finite, odd_rows, say, settle, teller
from stepwell.core.instructions import Launch
from stepwell.core.protocols import StepResult
from stepwell.core.sampling import GREEDY
from stepwell.core.types import RequestId


class HostStepper:
    """See ``stepper.Stepper``.  ``runner`` computes on ``cache``; ``rows`` are the live requests, the backend's own."""

    graphs = graph_bytes = 0

    def __init__(self, runner: Runner, cache: KVCache, rows: Mapping[RequestId, Row], masks: Masks) -> None:
        self.runner = runner
        self.group = DecodeGroup(cache.pages)
        self._cache, self._rows, self._masks = cache, rows, masks

    def step(self, batch: Launch) -> StepResult:
        follow(batch, self._rows, self.group, self._cache)
        group, rows = self.group, self._rows
        result = StepResult(batch.step)
        slices = [
            SliceWork(rows[id], start, count, samples, teller(rows[id], result.prompt_logprobs))
            for id, start, count, samples in batch.slices
            if id in rows
        ]
        members = group.rows if batch.decode else []
        if not members and not slices:
            return result
        sampled = [*members, *(each.row for each in slices if each.samples)]
        masks = self._masks.begin([row for row in sampled if row.id in rows])
        logits = self.runner.run(self._work(slices, decode=bool(members)))
        allowed = None if masks is None else masks.result()
        tokens: list[int] = []
        if sampled:
            tokens, finite = highest(logits)
            check_finite(sampled, finite)
            odd = odd_rows(sampled, logits.shape[-1], allowed, lambda row: is_plain(row.sampling, row.generated))
            scores = (logits[each.place].cpu().numpy() for each in odd)
            settle(odd, scores, tokens, rows.__contains__, result)
        if allowed is not None:
            result.spoiled += allowed.wrong.items()
        if members:
            group.advance(tokens[: len(members)])
        say(sampled, tokens, rows.__contains__, result)
        return result

    def rehearse(self, tokens: int, running: int) -> None:
        length = min(tokens, self._cache.pages * self._cache.page_size)
        slices = []
        for index, start in enumerate(range(0, tokens, length)):
            row = Row(index, [0] * min(length, tokens - start), GREEDY, 0, frozenset())
            row.table = list(range(self._cache.pages))
            slices.append(SliceWork(row, 0, len(row.tokens), True))
        logits = self.runner.run(self._work(slices, decode=False))
        highest(logits[:1].expand(min(running, tokens), -1).contiguous())

    def clear(self) -> None:
        self.group.clear()

    def _work(self, slices: list[SliceWork], *, decode: bool) -> StepWork:
        group = self.group
        if not decode:
            nothing = np.zeros(0, np.int64)
            return StepWork(nothing, nothing, np.zeros((0, 1), np.int64), slices)
        pages = int(group.positions.max()) // self._cache.page_size + 1
        return StepWork(group.tokens.copy(), group.positions.copy(), group.tables(pages).copy(), slices)


def highest(logits: torch.Tensor) -> tuple[list[int], list[bool]]:
    """The token of the highest score in each row, and whether that is finite (it is not if any score is no number)."""
    if logits.device.type == "cpu":  # numpy takes a sixth of the time
        scores = logits.numpy()
        best = scores.argmax(axis=-1)
        return best.tolist(), np.isfinite(scores[np.arange(len(best)), best]).tolist()
    values, ids = logits.max(dim=-1)
    return ids.tolist(), torch.isfinite(values).tolist()
