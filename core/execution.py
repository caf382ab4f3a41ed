"""Interfaces of execution: what a cost model, a tokenizer and a backend are asked to do.

``core.protocols`` gives them out with all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.grammar import Grammar
from stepwell.core.instructions import Launch
from stepwell.core.sampling import GREEDY, SamplingParams, TokenLogprob
from stepwell.core.types import RequestId, StepId


class BatchShape(msgspec.Struct, gc=False):
    """What the time of a step depends on.  All counts are of this step only.

    ``kv_tokens`` sums, over the requests of the step, the KV positions that exist before it and that attention reads:
    the context of a decoding request, the earlier chunks of a prefill.
    """

    prefill_tokens: int = 0
    decode_requests: int = 0
    kv_tokens: int = 0
    swap_pages: int = 0
    prefill_requests: int = 0
    copied_pages: int = 0
    """Within the device (copy on write)."""
    prefill_pairs: int = 0
    """Pairs of a prefill token and a position that it attends to, itself included: what causal attention computes.  A
    chunk of ``n`` tokens behind ``c`` others has n·c + n·(n + 1)/2.  Only some cost models look at it; 0 where it is
    not known."""


class CostModel(Protocol):
    """Predicts step times; integers only, so that every machine computes the same nanoseconds."""

    def step_ns(self, shape: BatchShape) -> int:
        """Time of one step: positive, finite, non-decreasing in every count."""
        ...

    def run_ns(self, shape: BatchShape, start_ns: int, steps: int, until_ns: int) -> list[int]:
        """Times at which up to ``steps`` decode steps end, the first one shaped ``shape`` and starting at ``start_ns``,
        each later one reading ``decode_requests`` KV tokens more.  Stops after the first that ends at or past
        ``until_ns``.  Must equal ``step_ns`` step by step, to the nanosecond.
        """
        ...


class StepResult(msgspec.Struct, array_like=True, gc=False):
    """What a backend says of a finished step.  ``tokens`` are (request, token id) of every row that sampled.

    ``prompt_logprobs`` are (request, place of the first, rows) for tokens of prompts, where they were asked for; a
    request that is computed again brings them again.
    ``spoiled`` are requests whose grammar cannot be followed any further, and why; their tokens are not part of it.
    ``failed`` is empty on success; otherwise nothing of the step counts and ``blamed`` names those at fault.
    """

    step: StepId
    ended: list[RequestId] = []
    tokens: list[tuple[RequestId, int]] = []
    logprobs: dict[RequestId, TokenLogprob] = {}
    elapsed_ns: int = 0
    copy_ns: int = 0
    failed: str = ""
    blamed: list[RequestId] = []
    device_lost: bool = False
    prompt_logprobs: list[tuple[RequestId, int, list[TokenLogprob]]] = []
    spoiled: list[tuple[RequestId, str]] = []


class Tokenizer(Protocol):
    """Text to token ids and back, without state."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def end_tokens(self) -> frozenset[int]:
        """Every token that ends an answer: the union of all sources of the model."""
        ...

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids; names of special tokens inside ``text`` are honoured only with ``special`` (templates)."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to a text it does not begin; empty for special tokens."""
        ...

    def decode(self, tokens: Sequence[int]) -> bytes:
        """The bytes of a whole answer, special tokens left out."""
        ...


class PromptIds(list[int]):
    """Token ids that are known to be 0 to ``below`` - 1, and that nobody changes.

    All choices of a prompt share them, and nobody looks through them again: a million would hold every stream up.
    """

    __slots__ = ("below",)

    def __init__(self, ids: Iterable[int], below: int) -> None:
        super().__init__(ids)
        self.below = below


class BackendInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What was found when a backend was made; sizes in bytes, 0 and empty where it has no such thing.

    ``context`` is the longest request that model and pool can hold; ``possible_pages`` would have fitted.
    """

    model: str
    dtype: str = ""
    device: str = ""
    threads: int = 0
    vocab_size: int = 0
    context: int = 0
    pages: int = 0
    page_size: int = 0
    host_pages: int = 0
    page_bytes: int = 0
    weight_bytes: int = 0
    activation_bytes: int = 0
    possible_pages: int = 0
    grammars: bool = False
    """Whether it holds answers to grammars (and is a ``Constrains``)."""
    kernels: str = ""
    """The suite of kernels, and why not a faster one."""
    graphs: int = 0
    """Decode steps that are recorded, each for a number of requests; ``graph_bytes`` is what they hold."""
    graph_bytes: int = 0

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raise ``UserError`` for a token that the model does not have, or no token at all."""
        if not prompt:
            raise UserError("must hold at least one token", field="prompt")
        if isinstance(prompt, PromptIds) and prompt.below <= self.vocab_size:
            return
        if self.vocab_size and not 0 <= min(prompt) <= max(prompt) < self.vocab_size:
            wrong = next(each for each in prompt if not 0 <= each < self.vocab_size)
            raise UserError(f"token {wrong} is outside 0 … {self.vocab_size - 1}", field="prompt")


@runtime_checkable
class Constrains(Protocol):
    """A backend that holds answers to ``SamplingParams.grammar``."""

    def prepare(self, grammar: Grammar) -> None:
        """Make everything that takes long, so that no step waits for it.  In any thread, beside a step.

        Raises ``UserError`` for what is no grammar, or asks for a token that the model does not have.
        """
        ...


class Backend(Protocol):
    """Executes steps in the order of their ids."""

    @property
    def info(self) -> BackendInfo: ...

    def admit(
        self,
        request: RequestId,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
        output: Sequence[int] = (),
    ) -> None:
        """Make the request's token ids and how to sample known before a step names it.

        ``output`` is what it has said already: the request goes on from there, as if it had been here all the time.
        Raises ``UserError`` for a token that the model does not have.
        """
        ...

    def execute(self, batch: Launch) -> StepResult:
        """Do one step.  A failure is a result, and forgets the decode group; an exception stops the engine."""
        ...

    def release(self, request: RequestId) -> None:
        """The request ended; forget it.  A step already in flight may still name it."""
        ...

    def close(self) -> None: ...
