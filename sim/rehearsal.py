"""The backend ``costmodel``: takes the time of a model and devices that are not there, and says something as long.

The live server then queues, batches, pages, preempts and streams as it would in front of those devices, in real time:
each step takes what the cost model predicts of its batch.  What is rehearsed is everything but the words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np

from stepwell.core.execution import BackendInfo, CostModel, StepResult
from stepwell.core.instructions import Launch
from stepwell.core.sampling import GREEDY, SamplingParams
from stepwell.core.types import RequestId
from stepwell.core.words import TEXT, WordTokenizer
from stepwell.sim.backend import EchoBackend
from stepwell.sim.cost.linear import Linear
from stepwell.sim.numbered import numbered_tokens
from stepwell.sim.workload.draws import exp, log, normals, uniforms

_ANSWERS = 9_001
"""The purpose of the draws (see ``sim.workload.draws``)."""


class CostModelBackend:
    """Answers with a built-in text, or the prompt, in the time that ``[cost]`` says; needs no model."""

    name = "costmodel"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """How long answers are, and of what; a request's ``max_tokens`` cuts them, ``ignore_eos`` ignores their end."""

        text: Literal["built-in", "prompt", "numbers"] = "built-in"
        """What is said, again and again; ``numbers``: each token says which one of its answer it is."""
        answer_tokens: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 200
        """Mean length; that of a chat in public workloads."""
        answer_sigma: Annotated[float, msgspec.Meta(ge=0, le=3)] = 0.7
        """Of the logarithm of lengths, which are lognormal; 0: all are the mean."""
        seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)] = 0
        """With a request's number it fixes its length."""

    def __init__(self, options: Options | None = None, *, cost: CostModel | None = None) -> None:
        self.options = options = CostModelBackend.Options() if options is None else options
        cost = cost or Linear()
        tokenizer = WordTokenizer()
        text = _SAID[options.text](tokenizer)
        self._lengths = _Lengths(options)
        self._echo = EchoBackend(cost=cost, lengths=self._lengths, text=text)
        setup = getattr(cost, "setup", None)
        self.info = BackendInfo(
            model=rehearsed(cost), vocab_size=tokenizer.vocab_size, context=setup.model.context if setup else 0
        )

    def admit(
        self,
        request: RequestId,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
        output: Sequence[int] = (),
    ) -> None:
        self._lengths.least[request] = max(sampling.min_tokens, 1)
        self._echo.admit(request, prompt, max_tokens, sampling, output)

    def execute(self, batch: Launch) -> StepResult:
        """One step; ``elapsed_ns`` is how long it is to take, and the engine waits for it."""
        return self._echo.execute(batch)

    def release(self, request: RequestId) -> None:
        self._lengths.least.pop(request, None)
        self._echo.release(request)

    def close(self) -> None:
        """Nothing is held."""


def _built_in(tokenizer: WordTokenizer) -> list[int] | None:
    return tokenizer.encode(TEXT.replace("\n", ""))


def _prompt(tokenizer: WordTokenizer) -> list[int] | None:
    return None


_SAID: Mapping[str, Callable[[WordTokenizer], list[int] | None]] = {
    "built-in": _built_in,
    "prompt": _prompt,
    "numbers": numbered_tokens,
}


class _Lengths(Mapping[RequestId, int]):
    """Lognormal lengths by request, none before it is asked for."""

    def __init__(self, options: CostModelBackend.Options) -> None:
        self._options = options
        self.least: dict[RequestId, int] = {}
        """Of requests that live."""

    def __getitem__(self, request: RequestId) -> int:
        options, sigma = self._options, self._options.answer_sigma
        middle = log(np.array([float(options.answer_tokens)])) - sigma * sigma / 2
        drawn = exp(middle + sigma * normals(uniforms(options.seed, _ANSWERS, 1, request)))
        return max(int(drawn[0] + 0.5), self.least.get(request, 1))

    def __iter__(self) -> Iterator[RequestId]:
        return iter(self.least)

    def __len__(self) -> int:
        return len(self.least)


def rehearsed(cost: CostModel) -> str:
    """What is rehearsed, in words."""
    setup = getattr(cost, "setup", None)
    kind = getattr(cost, "name", type(cost).__name__)
    if setup is None:
        return f"nothing, in the time of the cost model {kind}"
    return f"{setup.model.name} as if on {setup.devices} × {setup.device.name} (cost model {kind})"
