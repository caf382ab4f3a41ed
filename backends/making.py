"""Makes what executes steps: to be served with, and before that, on a few pages, to see what memory it takes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence

import torch

from stepwell.backends.batch import Row
from stepwell.backends.budget import peak_bytes
from stepwell.backends.device.graphs import Recorder, graph_sizes
from stepwell.backends.device.stepper import DeviceStepper
from stepwell.backends.host import HostStepper
from stepwell.backends.kernels.suite import Kernels
from stepwell.backends.kv_cache import KVCache
from stepwell.backends.masks import Masks
from stepwell.backends.models.llama import Llama
from stepwell.backends.runner import FastRunner, TiledRunner
from stepwell.backends.stepper import Stepper
from stepwell.core.types import RequestId

_TILED_PART = 256
"""Tokens of a step in tiles that are measured: tiles are slow and all alike, so the rest is counted."""
_LONGEST = 4096
"""Positions of a request in the largest step that is tried."""

RecorderOf = Callable[[], Recorder]


class Maker:
    """Of one model.  ``kernels`` None: the host's own way.  ``recorder_of``: how decode steps are recorded, if they
    are."""

    def __init__(
        self,
        model: Llama,
        masks: Masks,
        kernels: Kernels | None,
        recorder_of: RecorderOf | None,
        *,
        running_limit: int,
        token_budget: int,
        page_size: int,
    ) -> None:
        self._model, self._masks, self._kernels, self._recorder_of = model, masks, kernels, recorder_of
        self._running_limit, self._token_budget, self._page_size = running_limit, token_budget, page_size

    def cache(self, pages: int, host_pages: int) -> KVCache:
        model = self._model
        sizes = (pages, host_pages, self._page_size)
        if self._kernels is None:
            return KVCache(model.config, *sizes, model.dtype, model.device)
        return KVCache(model.config, *sizes, model.dtype, model.device, kernels=self._kernels)

    def stepper(self, cache: KVCache, rows: Mapping[RequestId, Row]) -> Stepper:
        """To be served with.  Whatever is recorded is recorded now."""
        return self._made(cache, rows, self._recorder_of, graph_sizes(self._running_limit))

    def activation_bytes(self) -> int:
        """What a largest step takes beside weights and pages: measured."""
        part = min(self._token_budget, _TILED_PART) if self._model.tile else self._token_budget

        @torch.inference_mode()
        def largest() -> None:
            self._made(self._some_pages(), {}, None, []).rehearse(part, self._running_limit)

        return peak_bytes(self._model.device, largest) * self._token_budget // part

    def graph_bytes(self) -> int:
        """What the recorded steps will take: the largest and the smallest are recorded, and counted."""
        if self._recorder_of is None or self._kernels is None:
            return 0
        sizes = graph_sizes(self._running_limit)
        tried = self._recorder_of()
        self._made(self._some_pages(), {}, lambda: tried, sizes[:1] + sizes[1:][-1:])
        first, *others = [*tried.taken, 0]
        gc.collect()  # what was recorded gives its memory back when it goes
        torch.cuda.empty_cache()
        return first + max(others, default=0) * (len(sizes) - 1)

    def _made(
        self, cache: KVCache, rows: Mapping[RequestId, Row], recorder_of: RecorderOf | None, sizes: Sequence[int]
    ) -> Stepper:
        model = self._model
        if self._kernels is None:
            runner = TiledRunner(model, cache) if model.tile else FastRunner(model, cache)
            return HostStepper(runner, cache, rows, self._masks)
        return DeviceStepper(
            model,
            self._kernels,
            cache,
            rows,
            self._masks,
            running_limit=self._running_limit,
            recorder=None if recorder_of is None else recorder_of(),
            sizes=sizes,
        )

    def _some_pages(self) -> KVCache:
        return self.cache(-(-min(self._token_budget, self._model.config.context, _LONGEST) // self._page_size), 0)
