"""The engine as transports see it: prompts in text or messages go in, answers in text come out.

Whoever sets a server up hands in a ``Model`` (tokenizer, chat template, backend) and a configuration; everything else
is put together here.  ``run`` must be running (the application's lifespan does that) while requests are served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import anyio
import structlog
from anyio.abc import TaskGroup

from stepwell.core.build_live import serving_scheduler
from stepwell.core.clock import Clock, RealClock
from stepwell.core.config import Config
from stepwell.core.engine import Engine, Observer, TokenObserver
from stepwell.core.errors import CapacityError
from stepwell.core.registry import check_servable
from stepwell.core.scheduler import Scheduler
from stepwell.core.text import NO_STOPS, StopStrings, TextPipeline
from stepwell.core.types import NS_PER_S, RequestId
from stepwell.transports.aside import Aside
from stepwell.transports.decisions import DecisionRing
from stepwell.transports.errors import Refusal, refusal_of
from stepwell.transports.following import Following
from stepwell.transports.gateway.admission import Admission
from stepwell.transports.gateway.gateway import Gateway
from stepwell.transports.generation import Choice, Generation
from stepwell.transports.journal_control import JournalControl
from stepwell.transports.loop_lag import LoopLag
from stepwell.transports.measuring import metrics_of
from stepwell.transports.model import Model, serving_config
from stepwell.transports.onlookers import tell_all
from stepwell.transports.opened import Opened
from stepwell.transports.outlet import Outlet
from stepwell.transports.parsing.parsers import Parsers
from stepwell.transports.prompt_keys import PromptKeys
from stepwell.transports.prompts import Prompts
from stepwell.transports.request_names import RequestNames
from stepwell.transports.stopping import GOODBYE_S, Stopping, shutting_down
from stepwell.transports.store.store import Store
from stepwell.transports.structured import Structured
from stepwell.transports.times import RequestTimes
from stepwell.transports.unstarted import Unstarted
from stepwell.transports.wants import Wants, of_a_later_choice
from stepwell.transports.watch import Watches
from stepwell.transports.wire import Wire

log = structlog.get_logger("stepwell.service")

T = TypeVar("T")

THREADS = 4
"""For tokenising, templates and page keys."""


class Service:
    """One model behind one engine.  ``observers`` and ``token_observer`` are for a journal; see ``Engine``."""

    journal: JournalControl | None = None
    """To be switched while serving; None: there is no folder for one."""

    def __init__(
        self,
        config: Config,
        model: Model,
        *,
        scheduler: Scheduler | None = None,
        observers: Sequence[Observer] = (),
        token_observer: TokenObserver | None = None,
        clock: Clock | None = None,
        store: Store | None = None,
    ) -> None:
        self.store = store  # closed with the service
        self.config = config = serving_config(config, model)
        self.model = model
        self.limits = config.server
        self.clock = clock or RealClock()
        self.scheduler = scheduler or serving_scheduler(config)
        check_servable(self.scheduler.state.policy)
        self.metrics = metrics_of(config, model.name, self.scheduler, self.clock)
        self.decisions = DecisionRing(config.admin.events_kept, self.metrics)
        self.times = RequestTimes()
        self._open: dict[Generation, Opened] = {}
        self._watched: dict[RequestId, tuple[Choice, Generation]] = {}
        following = Following(self._watched, self._open)
        own = self.metrics.observe, self.decisions.observe, self.times.observe, following.observe
        self.observers = [*observers, *own]
        """More may be added before it runs; so with those who are told of answers ``begun`` and ``over``."""
        self.begun: list[Callable[[Generation, Wants], None]] = []
        self.over: list[Callable[[Generation], None]] = []
        self.closing: list[Callable[[], None]] = []
        """Called once, when nothing is served any more."""
        self.engine = Engine(
            self.scheduler, model.backend, self.clock, observers=self.observers, token_observer=token_observer
        )
        self.engine.decided = self.metrics.step.decided
        self.context = self.scheduler.max_tokens
        """Tokens of a prompt and its answer together, at most."""
        self.leaving = self.draining = False
        """Nobody should send requests here any more; none is taken any more."""
        self.stopping = Stopping()
        """Set when whatever is open should say goodbye."""
        self.sockets_open = 0
        """WebSockets, counted by their endpoint."""
        self.lags = 0
        """Pieces of text that clients who were behind took together, of answers that are over."""
        self.outlet = Outlet()
        self.loop_lag = LoopLag(self.outlet.look)
        self.aside = Aside(THREADS, self.limits.offload_kib << 10)
        self.keys = PromptKeys(self.scheduler.state.allocator, self.aside)
        self.structured = Structured(self.engine.place, model.read_grammar, config.grammar)
        self.prompts = Prompts(
            model.tokenizer, model.encode, model.template, self.context, self.aside, quick=model.quick
        )
        self.parsers = Parsers(config.model, model.chat_template, model.tokenizer)
        self._watches = Watches(self.clock.now_ns)
        self.watching = self._watches.watching
        """A context manager: looks at a connection's ``Watch`` now and then, inside."""
        self.gateway = Gateway(config, self.metrics.count)
        self.wire = Wire(config, self.gateway, model.name)
        self.names = RequestNames(lambda: self.gateway.keyed)
        self.admission = Admission(config, self.scheduler, self.metrics, self.clock.now_ns)
        self.unstarted = Unstarted(self.limits.sockets_mib, emptied=lambda: self._idle.set())
        self.bodies = Unstarted(self.limits.bodies_mib, what="bodies of requests that are not understood yet")
        self._idle = anyio.Event()
        self._tasks: TaskGroup | None = None
        self._ran = self._closed = False
        self._measure()

    def _measure(self) -> None:
        """What only a server sees is counted too."""
        self.origin: Callable[[str], str] = lambda path: ""
        """Where the value of a setting came from, if anybody knows."""
        self.metrics.gauges |= {
            "stepwell:streams_open": ("Answers in progress.", lambda: len(self._watched)),
            "vllm:websocket_connections_active": ("WebSockets open.", lambda: self.sockets_open),
            "stepwell:estimated_wait_seconds": ("A guess, of a new request.", lambda: self.wait_ns / NS_PER_S),
            "stepwell:loop_lag_seconds": ("How late the event loop is; fades.", lambda: self.loop_lag.worst_s),
        }
        gap = "Between two rounds of writing to streams; above 0 while the loop is full.", lambda: self.outlet.gap_s
        self.metrics.gauges["stepwell:write_gap_seconds"] = gap
        self.metrics.measured["stepwell:event_loop_lag_seconds"] = "How late the event loop is.", self.loop_lag.seconds
        restarts = "Worker processes that died and were replaced.", lambda: self.engine.place.restarts
        self.metrics.counters["stepwell:worker_restarts"] = restarts
        faults = "Those of them whose device had failed.", lambda: self.engine.place.device_faults
        self.metrics.counters["stepwell:device_faults"] = faults
        lags = "Pieces of text that grew together, as a client was behind.", lambda: self.lags
        self.metrics.counters["stepwell:stream_lag_events"] = lags

    # ------------------------------------------------------------------------------------------- life

    async def run(self, started: Callable[[], None] = lambda: None) -> None:
        """Serve until cancelled or until ``stop``; no request is left behind."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                self.loop_lag.start()
                async with anyio.create_task_group() as beside:
                    beside.start_soon(self.structured.warm)
                    patience_s = min(self.limits.ping_s, self.limits.send_timeout_s)
                    beside.start_soon(self._watches.run, min(1.0, patience_s / 16))
                    beside.start_soon(self.gateway.watch)
                    started()
                    self._ran = True
                    await self.engine.run()
                    beside.cancel_scope.cancel()
        finally:
            self._tasks = None
            self.close()

    def close(self) -> None:
        """Give back what the model holds, once, however often it is called: by ``run`` in the end, and by whoever made
        the service, as it may never have run."""
        if self._closed:
            return
        self._closed = self.draining = True
        self.aside.close()
        for close in self.closing:
            close()
        self.structured.close()
        self.loop_lag.stop()
        try:
            if not self._ran:  # otherwise the engine closes it
                self.model.backend.close()
        finally:
            if self.model.close is not None:
                self.model.close()
            if self.store is not None:
                self.store.close()

    def leave(self) -> None:
        """Say that nothing more should be sent here; what is sent all the same is taken until ``drain``."""
        self.leaving = True

    def drain(self) -> None:
        """Take nothing new; what runs goes on."""
        self.draining = True

    def check_taking(self) -> None:
        """Raises ``CapacityError`` if nothing new is taken."""
        if self.engine.failed:
            raise CapacityError("the engine stopped", code="not_ready")
        if self.draining:
            raise CapacityError("the server is draining", code="draining")
        if self._stalled:
            raise CapacityError(self._stalled, code="not_ready")

    async def drained(self) -> None:
        """Wait until nothing is in progress or waits in a lane, or nobody waits for that any more."""
        while (self._open or self.unstarted.size) and not self.stopping.is_set():
            self._idle = anyio.Event()
            await self._idle.wait()

    def shut_down(self) -> None:
        """Nothing goes on: answers in progress end with an error, and sockets are closed."""
        self.draining = True
        for generation in list(self._open):
            generation.fail(shutting_down())
        self.stopping.set()
        self._idle.set()

    async def left(self) -> None:
        """Wait until everybody who had something open has been told, or was cut off."""
        with anyio.move_on_after(2 * GOODBYE_S):
            while self._open or self.sockets_open:
                await anyio.sleep(0.01)

    def stop(self) -> None:
        """Shut down, and end ``run``."""
        self.shut_down()
        self.engine.close()

    # ------------------------------------------------------------------------------------------- health

    @property
    def alive(self) -> str:
        """Why the process should be restarted; empty if it is well."""
        return self.engine.failed

    @property
    def unready(self) -> str:
        """Why nothing should be sent here now; empty if it is ready."""
        if self.engine.failed:
            return f"the engine stopped: {self.engine.failed}"
        if self._tasks is None:
            return "not started"
        if self.leaving or self.draining:
            return "draining"
        if self.scheduler.paused:
            return "paused"
        if self.engine.place.trouble:
            return self.engine.place.trouble
        return self._stalled

    @property
    def _stalled(self) -> str:
        """Why nothing that is sent here would be answered soon; empty if steps finish, or there is nothing to do."""
        stalled_ns = self.metrics.stalled_ns(self.clock.now_ns())
        if stalled_ns > self.limits.stall_s * NS_PER_S:
            return f"there is work and no step has finished for {stalled_ns / NS_PER_S:.1f} s"
        return ""

    @property
    def wait_ns(self) -> int:
        """A guess how long a new request would wait; 0: nobody knows."""
        return self.metrics.wait_ns(self.clock.now_ns())

    def refusal(self, error: BaseException) -> Refusal:
        """What a client is told of ``error``."""
        told = refusal_of(error, self.wait_ns)
        if told.status >= 500 and told.status != 503:
            log.error("a request failed", reason=str(error))
        return told

    # ------------------------------------------------------------------------------------------- answers

    def start(self, prompts: Sequence[list[int]], wants: Wants, keys: Sequence[list[int]] = ()) -> Generation:
        """Hand the prompts in, ``wants.n`` times each.  Raises ``CapacityError`` if nothing more is taken."""
        if self.stopping.is_set():
            raise shutting_down()
        if self._tasks is None:
            raise CapacityError("not started", code="not_ready")
        if len(self._watched) + wants.n * len(prompts) > self.limits.max_streams:
            raise CapacityError(f"{len(self._watched)} answers are in progress", code="too_many_streams")
        stops = StopStrings(wants.stop) if wants.stop else NO_STOPS
        choices: list[Choice] = []
        generation = Generation(choices, self._close)
        ticket = self.admission.take(prompts, wants.n, wants.max_tokens, wants.standing)
        self._open[generation] = Opened(ticket, wants.standing)
        try:
            for prompt, own in zip(prompts, keys or [[] for _ in prompts], strict=True):
                parent: RequestId = 0
                for index in range(wants.n):
                    choices.append(self._submit(len(choices), index, prompt, own, wants, stops, parent))
                    request = choices[-1].stream.request
                    self._watched[request] = (choices[-1], generation)
                    parent = parent or request
        except BaseException:
            generation.close()
            raise
        for choice in choices:
            choice.listen(self.engine.stop, generation.tell, generation.tell_end)
        tell_all(self.begun, generation, wants)
        return generation

    def _submit(
        self,
        place: int,
        index: int,
        prompt: list[int],
        keys: list[int],
        wants: Wants,
        stops: StopStrings,
        parent: RequestId,
    ) -> Choice:
        standing = wants.standing
        sampling = wants.sampling if index == 0 else of_a_later_choice(wants.sampling, index)
        most = self.context - len(prompt)
        if wants.max_tokens is not None:
            # For none, one is computed and dropped: a request without would be a case of its own in every policy.
            most = min(max(wants.max_tokens, 1), most)
        stream = self.engine.submit(
            prompt,
            most,
            klass=standing.klass,
            tenant=standing.tenant,
            priority=standing.priority,
            program=standing.program,
            expires_ns=self.clock.now_ns() + standing.deadline_ns if standing.deadline_ns else 0,
            keys=keys,
            salt=self.keys.salt(standing.tenant, wants.cache_salt),
            sampling=sampling,
            parent=parent,
        )
        reading = wants.reading(prompt) if wants.reading is not None else None
        pipeline = TextPipeline(
            self.model.tokenizer if reading is None else self.parsers.shows(self.model.tokenizer),
            stops=stops,
            min_tokens=sampling.min_tokens,
            hidden=self.model.tokenizer.end_tokens.union(sampling.stop_token_ids),
            opening=wants.opening,
        )
        return Choice(place, prompt, stream, pipeline, silent=wants.max_tokens == 0, reading=reading)

    @property
    def open(self) -> Mapping[Generation, Opened]:
        """Answers in progress."""
        return dict(self._open)

    def _close(self, generation: Generation) -> None:
        for choice in generation.choices:
            self.lags += choice.lags
            self._watched.pop(choice.stream.request, None)
            self.times.forget(choice.stream.request)
        self.admission.settle(self._open.pop(generation).ticket, generation)
        tell_all(self.over, generation)
        if not self._open:
            self._idle.set()
