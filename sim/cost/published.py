"""Step times that others published, to hold ``roofline`` against: `stepwell cost check` shows what it makes of them.

A point is a step: ``decode_requests`` with ``context`` tokens each, or one prompt of ``prefill_tokens``.  Where a
source gives a latency per token at a fixed concurrency, the context is that of the middle of an answer.  Two points
chose defaults (``fitted``), and the growth from 1 to 128 requests in the same run another (``request_overhead_ns``).
"""

from __future__ import annotations

import msgspec

from stepwell.core.protocols import BatchShape
from stepwell.sim.cost.roofline import Roofline
from stepwell.sim.cost.setup import Precision, RooflineOptions

_SILYBENCH = "github.com/tgarg01/silybench-data, derived/csv/perf_points.csv: vLLM 0.30, September 2026"
_YOBITEL = "yobitelcomm.github.io/bench/recipes/concurrency-sweep: vLLM 0.21, May 2026"
_MUSGRAVE = "johnmusgrave.com/p/vllm-throughput-latency-sweep-on: vLLM 0.23, 75 tokens/s"
_VLLM_CI = "buildkite.com/vllm/performance-benchmark/builds/9515: vLLM in 2024, batch of 8, 32 in, 128 out"
_NIM = "docs.nvidia.com/nim/benchmarking/llm/1.0.0/performance: NIM 1.8.0, one request"
_QWQ = "github.com/vllm-project/vllm/issues/18725: QwQ-32B, which is built as Qwen2.5-32B, one request"
_ML_ENERGY = "github.com/ml-energy/leaderboard, public/data/tasks/lm-arena-chat.json, prompts of unknown length"
_AWQ = "huggingface.co/QuixiAI/DeepSeek-V3-0324-AWQ: vLLM 0.8.3, one request, 61.5 tokens/s"


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """One published step time."""

    device: str
    model: str
    weights: Precision = "bf16"
    tensor_parallel: int = 1
    decode_requests: int = 0
    context: int = 0
    prefill_tokens: int = 0
    measured_ms: float
    source: str
    present: bool = False
    """A dense model under an engine of this year."""
    fitted: bool = False

    @property
    def options(self) -> RooflineOptions:
        """All else is the default."""
        return RooflineOptions(
            device=self.device, model=self.model, weights=self.weights, tensor_parallel=self.tensor_parallel
        )

    @property
    def shape(self) -> BatchShape:
        tokens = self.prefill_tokens
        return BatchShape(
            prefill_tokens=tokens,
            prefill_requests=1 if tokens else 0,
            prefill_pairs=tokens * (tokens + 1) // 2,
            decode_requests=self.decode_requests,
            kv_tokens=self.decode_requests * self.context,
        )

    @property
    def predicted_ms(self) -> float:
        return Roofline(self.options).step_ns(self.shape) / 1e6

    @property
    def deviation(self) -> float:
        """(predicted − measured) / measured."""
        return self.predicted_ms / self.measured_ms - 1


def _qwen(weights: Precision, rows: list[tuple[int, int, float]], *, fitted: bool = False) -> list[Published]:
    """Qwen3-8B on one H100: (requests, context, median time between tokens in ms)."""
    return [
        Published(
            device="H100",
            model="qwen-3-8b",
            weights=weights,
            decode_requests=requests,
            context=context,
            measured_ms=measured_ms,
            source=_SILYBENCH,
            present=True,
            fitted=fitted and index == 0,
        )
        for index, (requests, context, measured_ms) in enumerate(rows)
    ]


def _prompt(weights: Precision, tokens: int, measured_ms: float) -> Published:
    """Time to the first token (95th percentile) of one request alone; the HTTP server's part is in it."""
    return Published(
        device="H100",
        model="qwen-3-8b",
        weights=weights,
        prefill_tokens=tokens,
        measured_ms=measured_ms,
        source=f"{_SILYBENCH}, TTFT",
    )


def _other(
    device: str,
    model: str,
    requests: int,
    context: int,
    measured_ms: float,
    source: str,
    *,
    weights: Precision = "bf16",
    tensor: int = 1,
) -> Published:
    return Published(
        device=device,
        model=model,
        weights=weights,
        tensor_parallel=tensor,
        decode_requests=requests,
        context=context,
        measured_ms=measured_ms,
        source=source,
        present=source in (_YOBITEL, _MUSGRAVE),
    )


PUBLISHED = (
    *_qwen(
        "bf16",
        [
            *((1, 192, 6.83), (16, 192, 7.14), (64, 192, 8.15), (128, 192, 9.34), (256, 192, 12.83)),
            *((1, 640, 6.86), (16, 640, 7.53), (64, 640, 9.49), (128, 640, 12.00), (256, 640, 18.08)),
            *((1, 3072, 7.00), (16, 3072, 9.46), (64, 3072, 17.05), (1, 8448, 7.30), (4, 8448, 8.62)),
        ],
        fitted=True,
    ),
    *_qwen(
        "fp8",
        [
            *((1, 192, 4.62), (16, 192, 4.86), (64, 192, 5.92), (128, 192, 7.55), (256, 192, 10.87)),
            *((1, 640, 4.66), (16, 640, 5.25), (64, 640, 7.26), (128, 640, 10.16), (256, 640, 16.13)),
            *((1, 3072, 4.80), (16, 3072, 7.22), (64, 3072, 14.81), (1, 8448, 5.10), (4, 8448, 6.43)),
        ],
        fitted=True,
    ),
    *(_prompt("bf16", 128, 14.2), _prompt("bf16", 2048, 61.3), _prompt("bf16", 8192, 253.9)),
    *(_prompt("fp8", 128, 14.5), _prompt("fp8", 2048, 50.3), _prompt("fp8", 8192, 205.1)),
    _other("H100", "llama-3-8b", 1, 300, 6.48, _YOBITEL),
    _other("H100", "llama-3-8b", 4, 300, 6.59, _YOBITEL),
    _other("A100-40", "llama-3-8b", 1, 1088, 13.3, _MUSGRAVE),
    _other("H200", "qwen-2.5-32b", 1, 400, 6.49, _QWQ, tensor=8),
    _other("H200", "llama-3-8b", 8, 96, 6.51, _VLLM_CI),
    _other("H200", "llama-3-70b", 8, 96, 16.23, _VLLM_CI, tensor=4),
    _other("H200", "mixtral-8x7b", 8, 96, 14.98, _VLLM_CI, tensor=2),
    _other("H100", "llama-3-70b", 1, 1500, 18.91, _NIM, weights="fp8", tensor=2),
    _other("H100", "llama-3-70b", 1, 5250, 18.58, _NIM, weights="fp8", tensor=2),
    _other("H100", "qwen-3-14b", 8, 500, 12.54, _ML_ENERGY),
    _other("H100", "qwen-3-14b", 64, 500, 18.94, _ML_ENERGY),
    _other("H100", "qwen-3-235b-a22b", 8, 600, 35.24, _ML_ENERGY, weights="fp8", tensor=4),
    _other("H100", "qwen-3-235b-a22b", 128, 600, 53.13, _ML_ENERGY, weights="fp8", tensor=4),
    _other("H100", "deepseek-v3", 1, 1000, 16.26, _AWQ, weights="int4", tensor=8),
)
