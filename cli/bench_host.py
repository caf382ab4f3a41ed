"""What the host does for one step of the engine, measured with a backend that takes no time.

One step is everything from a finished step to the next: commit, policy, batch, and for every stream its token, its
text, and the text taken by a task that stands for its connection.  Times are of this process on one core; whatever else
the machine does makes them longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from time import perf_counter_ns
from typing import Any

import anyio
import msgspec

from stepwell.core.clock import RealClock
from stepwell.core.config import Config, MemoryConfig, SchedulerConfig, ServerConfig, validate
from stepwell.core.errors import UserError
from stepwell.core.instructions import Launch
from stepwell.core.protocols import StepResult, Tokenizer
from stepwell.core.registry import complete
from stepwell.core.sampling import GREEDY, SamplingParams
from stepwell.core.types import RequestId, StepId
from stepwell.transports.echo import ByteTokenizer
from stepwell.transports.generation import Generation
from stepwell.transports.service import Message, Model, Service, Wants

PROMPT_TOKENS = 16
WARM_UP = 20
"""Steps before those that count."""

TEXT = """
The quick brown fox jumps over the lazy dog, while seventeen cautious engineers measure how long a single step takes.
"Nothing is free," said one of them; "not even 0.25 µs." Zwölf Boxkämpfer jagten Viktor quer über den großen Sylter
Deich. def step(batch: list[int]) -> int: return sum(x * x for x in batch)  # a comment 🙂 そして終わり。
"""


class HostPath(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds a step, with ``streams`` streams that all get a token in it."""

    streams: int
    steps: int
    tokenizer: str
    p50_us: float
    p99_us: float
    scheduling_us: float
    """Median of the part from a finished step to the next batch at the backend."""
    delivery_us: float
    """Median of the part from a step's tokens to every stream's text, taken by its connection."""
    framed_p50_us: float
    """Of a whole step in which every connection is also woken, and makes an event of its text for a socket that takes
    no time."""


def measure_host_path(streams: int = 256, steps: int = 200) -> HostPath:
    """Serve ``streams`` answers of the real engine at once, for ``steps`` steps, without and with connections."""
    name, tokenizer = _tokenizer()
    bare = _Run(tokenizer, streams, steps)
    anyio.run(bare.serve, False)
    framed = _Run(tokenizer, streams, steps)
    anyio.run(framed.serve, True)
    whole = sorted(bare.whole_us)
    return HostPath(
        streams=streams,
        steps=len(whole),
        tokenizer=name,
        p50_us=median(whole),
        p99_us=whole[len(whole) * 99 // 100],
        scheduling_us=median(bare.scheduling_us),
        delivery_us=median(bare.delivery_us),
        framed_p50_us=median(framed.whole_us),
    )


def _tokenizer() -> tuple[str, Tokenizer]:
    try:
        from stepwell.backends.tokenizer import tokenizer_from_gguf  # lazy: an extra
        from stepwell.backends.weights.opening import open_model  # lazy: the same

        return "smollm2", tokenizer_from_gguf(open_model("smollm2").gguf_metadata)
    except (ModuleNotFoundError, UserError):
        return "bytes", ByteTokenizer()


class _Instant:
    """A backend whose steps are done at once; it says a text, everybody at another place of it."""

    def __init__(self, words: Sequence[int], run: _Run) -> None:
        self._words = words
        self._run = run
        self._members: dict[RequestId, None] = {}

    def admit(
        self, request: RequestId, prompt: Sequence[int], max_tokens: int, sampling: SamplingParams = GREEDY
    ) -> None:
        """Nothing has to be known."""

    def execute(self, batch: Launch) -> StepResult:
        self._run.launched_ns = perf_counter_ns()
        for id in batch.left:
            self._members.pop(id, None)
        for id in batch.joined:
            self._members[id] = None
        place = batch.step % (len(self._words) >> 1)
        said = self._words[place : place + len(self._members)]
        tokens = list(zip(self._members, said, strict=True)) if batch.decode else []
        tokens += [(id, self._words[0]) for id, _, _, samples in batch.slices if samples]
        return StepResult(batch.step, [], tokens)

    def release(self, request: RequestId) -> None:
        """Nothing was kept."""

    def close(self) -> None:
        """Nothing is held."""


class _Run(RealClock):
    """One run, and its stopwatch: as the engine's clock and token observer it knows when a step begins and ends."""

    def __init__(self, tokenizer: Tokenizer, streams: int, steps: int) -> None:
        super().__init__()
        self.whole_us: list[float] = []
        self.scheduling_us: list[float] = []
        self.delivery_us: list[float] = []
        self.launched_ns = self._begun_ns = self._delivering_ns = self._told = self._full = 0
        self._streams = streams
        self._steps = steps + WARM_UP
        words = tokenizer.encode(TEXT)
        words *= 2 + 2 * streams // len(words)
        pages = streams * (-(-(PROMPT_TOKENS + self._steps + 2) // 16) + 1)
        config = Config(
            scheduler=SchedulerConfig(running_limit=streams, token_budget=max(streams * PROMPT_TOKENS, 2048)),
            memory=MemoryConfig(pages=pages, page_size=16, host_pages=0),
            server=ServerConfig(max_streams=streams, buffer_kib=65_536),
        )
        model = Model(name="instant", backend=_Instant(words, self), tokenizer=tokenizer, template=_no_chat)
        self._service = Service(complete(validate(config)), model, clock=self, token_observer=self)
        self._prompt = words[:PROMPT_TOKENS]

    # ---- the stopwatch

    async def settle(self) -> None:
        """The engine is about to look at what happened: the step before is over, and this one begins."""
        now_ns = perf_counter_ns()
        if self._told == self._streams:
            self._full += 1
            if self._full > WARM_UP:
                self.whole_us.append((now_ns - self._begun_ns) / 1000)
                self.scheduling_us.append((self.launched_ns - self._begun_ns) / 1000)
                self.delivery_us.append((now_ns - self._delivering_ns) / 1000)
        self._begun_ns, self._told = now_ns, 0

    def prompt(self, request: RequestId, tokens: Sequence[int]) -> None:
        """Not of interest."""

    def sampled(self, step: StepId, tokens: Sequence[tuple[RequestId, int]]) -> None:
        """The tokens of a step are about to be handed out."""
        self._delivering_ns = perf_counter_ns()
        self._told = len(tokens)

    # ---- what is served

    async def serve(self, connected: bool) -> None:
        """Until every stream has had its steps."""
        service = self._service
        async with anyio.create_task_group() as tasks:
            started = anyio.Event()
            tasks.start_soon(service.run, started.set)
            await started.wait()
            wants = Wants(max_tokens=self._steps + 2)
            answers = [service.start([self._prompt], wants) for _ in range(self._streams)]
            async with anyio.create_task_group() as connections:
                for answer in answers:
                    connections.start_soon(_connect if connected else _take, service, answer)
            service.stop()


async def _take(service: Service, answer: Generation) -> None:
    """A connection that takes its text and does nothing with it."""
    (choice,) = answer.choices
    while not choice.over:
        await answer.news()
        choice.take()
    answer.close()


async def _connect(service: Service, answer: Generation) -> None:
    from stepwell.transports.http.openai import ChatShape  # lazy: an extra
    from stepwell.transports.http.requests import ChatMessage, ChatRequest  # lazy: the same
    from stepwell.transports.http.sse import EventStream  # lazy: the same

    shape = ChatShape(service, ChatRequest(messages=[ChatMessage("user", "x")], stream=True))

    async def receive() -> dict[str, Any]:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Any) -> None:
        """A socket that takes no time."""

    await EventStream(service, answer, shape.events, shape.closing, {})({"type": "http"}, receive, send)


def _no_chat(messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
    raise UserError("there is no chat here", field="messages")
