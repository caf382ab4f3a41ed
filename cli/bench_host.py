"""What the host does for one step of the engine, measured with a backend that takes no time.

A step begins when the engine looks at the finished one: commit, policy, the batch to the backend; then for every stream
its token, its text, and its connection's task called to take it.  What those tasks do is measured too, and apart: each
makes an event of its text and sends it to a socket that takes no time.  Whatever else the machine does makes it longer.
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
from stepwell.core.protocols import BackendInfo, StepResult, Tokenizer
from stepwell.core.registry import complete
from stepwell.core.sampling import GREEDY, SamplingParams
from stepwell.core.types import RequestId, StepId
from stepwell.transports.chat import Message
from stepwell.transports.echo import ByteTokenizer
from stepwell.transports.generation import Generation
from stepwell.transports.model import Model
from stepwell.transports.service import Service
from stepwell.transports.wants import Wants

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
    """Median of the part up to the batch at the backend."""
    delivery_us: float
    """Median of the part from a step's tokens to every stream's text, ready for its connection."""
    connected_p50_us: float
    """Of a whole step, what the connections do with it included."""


def measure_host_path(streams: int = 256, steps: int = 200) -> HostPath:
    """Serve ``streams`` answers of the real engine at once, for ``steps`` steps."""
    name, tokenizer = _tokenizer()
    run = _Run(tokenizer, streams, steps)
    anyio.run(run.serve)
    whole = sorted(run.whole_us)
    return HostPath(
        streams=streams,
        steps=len(whole),
        tokenizer=name,
        p50_us=median(whole),
        p99_us=whole[len(whole) * 99 // 100],
        scheduling_us=median(run.scheduling_us),
        delivery_us=median(run.delivery_us),
        connected_p50_us=median(run.connected_us),
    )


def _tokenizer() -> tuple[str, Tokenizer]:
    try:
        from stepwell.backends.tokenizer import tokenizer_of  # lazy: an extra
        from stepwell.backends.weights.opening import open_model  # lazy: the same

        return "smollm2", tokenizer_of(open_model("smollm2"))
    except (ModuleNotFoundError, UserError):
        return "bytes", ByteTokenizer()


class _Instant:
    """A backend whose steps are done at once; it says a text, everybody at another place of it."""

    info = BackendInfo(model="none")

    def __init__(self, words: Sequence[int], run: _Run) -> None:
        self._words = words
        self._run = run
        self._members: dict[RequestId, None] = {}

    def admit(
        self,
        request: RequestId,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
        output: Sequence[int] = (),
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
        self.connected_us: list[float] = []
        self.launched_ns = self._begun_ns = self._delivering_ns = self._told_ns = self._told = self._full = 0
        self._last: Generation
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
                self.whole_us.append((self._told_ns - self._begun_ns) / 1000)
                self.scheduling_us.append((self.launched_ns - self._begun_ns) / 1000)
                self.delivery_us.append((self._told_ns - self._delivering_ns) / 1000)
                self.connected_us.append((now_ns - self._begun_ns) / 1000)
        self._begun_ns, self._told = now_ns, 0

    def prompt(self, request: RequestId, tokens: Sequence[int]) -> None:
        """Not of interest."""

    def sampled(self, step: StepId, tokens: Sequence[tuple[RequestId, int]]) -> None:
        """The tokens of a step are about to be handed out."""
        self._delivering_ns = perf_counter_ns()
        self._told = len(tokens)
        # It is told last, and says so: more waits for it than may.
        self._last.most_untaken, self._last.overflow = -1, self._all_told

    def _all_told(self) -> None:
        self._told_ns = perf_counter_ns()

    # ---- what is served

    async def serve(self) -> None:
        """Until every stream has had its steps."""
        service = self._service
        async with anyio.create_task_group() as tasks:
            started = anyio.Event()
            tasks.start_soon(service.run, started.set)
            await started.wait()
            wants = Wants(max_tokens=self._steps + 2)
            answers = [service.start([self._prompt], wants) for _ in range(self._streams)]
            self._last = answers[-1]
            async with anyio.create_task_group() as connections:
                for answer in answers:
                    connections.start_soon(_connect, service, answer)
            service.stop()


async def _connect(service: Service, answer: Generation) -> None:
    from stepwell.transports.http.chat_shape import ChatShape  # lazy: an extra
    from stepwell.transports.http.requests import NOTHING, ChatRequest  # lazy: the same
    from stepwell.transports.http.sse import EventStream  # lazy: the same

    shape = ChatShape(service, ChatRequest(messages=NOTHING, stream=True))

    async def receive() -> dict[str, Any]:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Any) -> None:
        """A socket that takes no time."""

    await EventStream(service, answer, shape.events, shape.closing, {})({"type": "http"}, receive, send)


def _no_chat(messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
    raise UserError("there is no chat here", field="messages")
