"""A device for vLLM that only takes time and numbers its tokens: an executor, named to vLLM by its import path.

Runs in vLLM's engine process, in an environment that has vLLM and needs nothing of Stepwell.  What it is told comes in
``--additional-config``: ``base_s``, ``each_s``, ``first`` and ``count`` (``pace.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from pace import Numbers, Pace
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes

ANSWERS: dict[str, Callable[[int], Any]] = {
    "get_kv_cache_spec": lambda block: {
        "layer": FullAttentionSpec(block_size=block, num_kv_heads=2, head_size=32, dtype=torch.float32)
    },
    "get_supported_kv_cache_layouts": lambda block: ["LBNHC"],
    "determine_available_memory": lambda block: 1 << 40,
    "compile_or_warm_up_model": lambda block: CompilationTimes(0.0, 0.0),
    "get_supported_tasks": lambda block: ("generate",),
}
"""What a worker would say to the questions of a start, by the size of a block; nothing to all others."""


class Step(Future[Any]):
    """A step in flight; whoever asks for its result waits until the device would be done."""

    def __init__(self, end_s: float, output: ModelRunnerOutput) -> None:
        super().__init__()
        self._end_s = end_s
        self.set_result(output)

    def result(self, timeout: float | None = None) -> Any:
        time.sleep(max(self._end_s - time.monotonic(), 0.0))
        return super().result()


class NumberingExecutor(Executor):  # type: ignore[misc]  # vLLM is not where types are checked
    """One device, no worker process, no weights."""

    def _init_executor(self) -> None:
        told = self.vllm_config.additional_config
        self._pace = Pace(told["base_s"], told["each_s"], time.monotonic)
        self._numbers = Numbers(told["first"], told["count"])

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> list[Any]:
        answer = ANSWERS.get(method)
        return [answer(self.cache_config.block_size) if answer else None]

    def set_kv_cache_layout(self, layout_name: str) -> None:
        self.cache_config.kv_cache_layout = layout_name

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        computed = scheduler_output.num_scheduled_tokens
        for new in scheduler_output.scheduled_new_reqs:
            self._numbers.add(new.req_id, len(new.prompt_token_ids) - new.num_computed_tokens)
        self._numbers.drop(scheduler_output.finished_req_ids)
        ids = list(computed)
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={id: index for index, id in enumerate(ids)},
            sampled_token_ids=self._numbers.step(computed),
        )
        step = Step(self._pace.end_of(len(ids)) if ids else 0.0, output)
        return step if non_block else step.result()

    def check_health(self) -> None:
        """It does not break."""

    def shutdown(self) -> None:
        """It holds nothing."""
