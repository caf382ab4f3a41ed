"""``stepwell bench streams``: thousands of users who stream from one server, as they and the server's process see it.

The server is a process of its own, with a device that only takes time and numbers its tokens; the crowd is this one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from urllib.parse import urlsplit

from stepwell.cli import streams_company, streams_rounds
from stepwell.cli.bench_server import OwnServer, own_server
from stepwell.cli.process_stats import SPARE, check_descriptors
from stepwell.cli.streams_crowd import Crowd, check_share, spread
from stepwell.cli.streams_line import in_words, line_of, machine_in_words
from stepwell.cli.streams_probe import Probe
from stepwell.cli.streams_run import Run
from stepwell.cli.streams_scenarios import BURST_S, JOINED_PER_S, LATE, SCENARIOS, THINK_S, TOKENS
from stepwell.cli.streams_tally import Tally
from stepwell.core.build import COSTMODEL
from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_S
from stepwell.sim.bench import Line, as_json, machine

MOST_USERS = 1_000_000
FLOOR = ("-m", "stepwell.cli.streams_floor")
POLICY = "fcfs"
Found = TypeVar("Found")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--users", type=int, default=1000, metavar="N", help="users at once (1000)")
    parser.add_argument(
        "--scenario", choices=[*SCENARIOS], default="closed",
        help="closed: ask, read, think; beat: all generate at once; burst: all ask within 10 s; stalled: beside clients"
        " that stop reading; steps: the time of a step with few and with all; leave: all but few at once (closed)",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=30.0, metavar="S", help="that are measured (30)")
    parser.add_argument("--sse-share", type=float, default=0.5, metavar="X", help="of users; others: WebSocket (0.5)")
    parser.add_argument("--tokens", type=int, default=0, metavar="N", help=f"of an answer ({TOKENS}); beat: none")
    parser.add_argument("--think", type=float, default=THINK_S, metavar="S", help=f"mean, closed ({THINK_S:g})")
    parser.add_argument("--beat", type=float, default=1.0, metavar="S", help="seconds a token of each, beat (1)")
    parser.add_argument(
        "--join", type=float, default=0.0, metavar="S",
        help=f"in which they begin, beat and stalled (one {JOINED_PER_S}th of the users)",
    )  # fmt: skip
    parser.add_argument(
        "--within", type=float, default=BURST_S, metavar="S", help=f"seconds in which all ask, burst ({BURST_S:g})"
    )
    parser.add_argument("--stalled", type=int, default=1000, metavar="N", help="who stop reading, stalled (1000)")
    parser.add_argument("--fill", type=float, default=40.0, metavar="S", help="until their buffers are full (40)")
    parser.add_argument(
        "--few", type=int, default=1, metavar="N", help="who are there first, steps; who stay, leave (1)"
    )
    parser.add_argument(
        "--model", default=COSTMODEL, metavar="MODEL",
        help="what is served, steps (costmodel); with another one `--few` run in every round, alone and beside all"
        " others, who wait in line and have patience for `--think` seconds",
    )  # fmt: skip
    parser.add_argument("--policy", default=POLICY, metavar="NAME", help=f"scheduling policy ({POLICY})")
    parser.add_argument("--journal", metavar="DIR", help="let the server write its journal into this folder")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting of the server")
    parser.add_argument("--floor", action="store_true", help="beat: the same of a bare Starlette server, after ours")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of when users ask (0)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    """Exit status 1 if a token was lost, came twice, or an answer ended as it should not."""
    check(args)
    first = machine()
    print(as_json(first) if args.json else machine_in_words(first), flush=True)
    if args.model != COSTMODEL:
        return 0 if _tell(args, "stepwell", _beside(args), streams_rounds.in_words) else 1
    with own_server(serve_words(args)) as server:
        good = _tell(args, "stepwell", measure(args, server, metrics=True))
    if args.floor:
        with own_server(floor_words(args), FLOOR) as server:
            good = _tell(args, "bare starlette", measure(args, server, metrics=False)) and good
    return 0 if good else 1


def serve_words(args: argparse.Namespace) -> list[str]:
    """What the server is started with, beside ``SERVE``."""
    words = [word for setting in _settings(args) for word in ("--set", setting)]
    policy = ["--policy", args.policy] if args.model == COSTMODEL else []
    return ["--model", args.model, *policy, *(["--journal", args.journal] if args.journal else []), *words]


def floor_words(args: argparse.Namespace) -> list[str]:
    """And the bare one, beside ``FLOOR``."""
    return ["--beat", str(args.beat)]


def _beside(args: argparse.Namespace) -> Line:
    """A real model's steps are in the server's journal, which is whole once that has ended."""
    with ExitStack() as stack:
        args.journal = args.journal or stack.enter_context(TemporaryDirectory(prefix="stepwell-steps-"))
        with own_server(serve_words(args)) as server:
            rounds, wrong = _run(streams_company.measure(args, server))
        steps = streams_rounds.rounds_of(Path(args.journal), args.few, everybody=streams_company.together(args))
        return streams_rounds.line_of(args, rounds, wrong, steps[1:])


def _tell(args: argparse.Namespace, engine: str, measured: Line, words: Callable[[Line], str] = in_words) -> bool:
    line = {"bench": "streams", "engine": engine, **measured}
    print(as_json(line) if args.json else words(line), flush=True)
    return not line["wrong"]


def _settings(args: argparse.Namespace) -> list[str]:
    """The scenario's own, and then what was asked for, which wins."""
    room = f"server.max_streams={args.users + args.stalled + SPARE}"
    if args.model != COSTMODEL:
        return [*streams_company.settings(args), room, *args.set]
    return [*SCENARIOS[args.scenario].settings(args), "model.options.text=numbers", room, *args.set]


def check(args: argparse.Namespace) -> None:
    """Raises ``UserError`` if they cannot be, and lets this process open as many connections as it takes."""
    check_share(args.sse_share)
    if not 1 <= args.users <= MOST_USERS:
        raise UserError(f"must be between 1 and {MOST_USERS:,}, not {args.users}", field="users")
    for name in ("seconds", "think", "beat", "within", "fill"):
        if not 0 < getattr(args, name) <= 86_400:
            raise UserError(f"must be above 0 and at most 86,400 s, not {getattr(args, name):g}", field=name)
    if not 0 <= args.join <= 86_400:
        raise UserError(f"must be at least 0 and at most 86,400 s, not {args.join:g}", field="join")
    if not 0 <= args.tokens <= 100_000:
        raise UserError(f"must be between 1 and 100,000, not {args.tokens}", field="tokens")
    if not 0 <= args.stalled <= MOST_USERS or not 1 <= args.few <= args.users:
        raise UserError(f"must be at least 1 and at most the users, not {args.few}", field="few")
    if args.model != COSTMODEL and args.scenario != "steps":
        raise UserError("other models do not number their tokens; only `steps` does without that", field="model")
    if args.model != COSTMODEL and args.policy != POLICY:
        raise UserError("the crowd of another model waits in line by the policy `priority`", field="policy")
    if args.floor and args.scenario != "beat":
        raise UserError("is of the scenario `beat`", field="floor")
    check_descriptors(args.users + (args.stalled if args.scenario == "stalled" else 0), "users at once", "users")


def measure(args: argparse.Namespace, server: OwnServer, *, metrics: bool) -> Line:
    """What the crowd of ``args`` sees of ``server``; ``metrics``: it has those of ours."""
    return _run(_measure(args, server, metrics=metrics))


def _run(crowd: Coroutine[Any, Any, Found]) -> Found:
    gc.collect()
    gc.freeze()
    gc.disable()  # what a crowd holds lives as long as it does
    try:
        with asyncio.Runner(loop_factory=_loop) as runner:
            return runner.run(crowd)
    finally:
        gc.enable()
        gc.unfreeze()


def _loop() -> asyncio.AbstractEventLoop:
    """The fastest there is."""
    try:
        import uvloop  # lazy: an extra
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _measure(args: argparse.Namespace, server: OwnServer, *, metrics: bool) -> Line:
    at = urlsplit(server.url)
    assert at.hostname is not None
    assert at.port is not None
    warm = Crowd(at.hostname, at.port, 2, 0.5, Tally(numbered=False), args.seed)
    await warm.open()
    await spread(warm, 0.0, lambda at_s: 2)
    await warm.all_ended()
    warm.disperse()
    beats_ns = int(LATE * args.beat * NS_PER_S) if args.scenario in ("beat", "stalled") else 0
    tally = Tally(beats_ns)
    probe = Probe(server.pid, f"http://{at.hostname}:{at.port}/metrics" if metrics else "")
    probe.start()
    crowd = Crowd(at.hostname, at.port, args.users, args.sse_share, tally, args.seed)
    await crowd.open()
    run = Run(args, tally, crowd, probe)
    try:
        await SCENARIOS[args.scenario].play(run)
    finally:
        probe.stop()
        crowd.disperse()
    await asyncio.sleep(0.1)
    return line_of(run)
