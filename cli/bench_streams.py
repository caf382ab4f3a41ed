"""``stepwell bench streams``: thousands of users who stream from one server, as they and the server's process see it.

The server is a process of its own, with a device that only takes time and numbers its tokens; the crowd is this one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import msgspec

from stepwell.cli.bench_server import SERVE, OwnServer, own_server
from stepwell.cli.process_stats import SPARE, check_descriptors
from stepwell.cli.streams_crowd import Crowd, Thinking, check_share, spread, steps_until
from stepwell.cli.streams_line import in_words, line_of, machine_in_words
from stepwell.cli.streams_probe import Probe
from stepwell.cli.streams_run import Run
from stepwell.cli.streams_tally import Tally
from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_S
from stepwell.sim.bench import Line, as_json, machine

MOST_USERS = 1_000_000
THINK_S = 60.0
"""Mean, in a closed loop."""
TOKENS = 100
"""Of an answer."""
BURST_S = 10.0
SETTLE_S = 5.0
"""A closed loop runs so long before it counts, at most."""
JOINED_PER_S = 250
"""Streams that begin, until all of them generate."""
LATE = 1.5
"""A gap of so many beats missed one."""
PAGE = 16
_PROMPT = 64
"""Tokens, at most."""
_DEVICE = 'cost={model="roofline",options={model="llama-3-70b",device="H100",tensor_parallel=8,page_size=16}}'
_PAGES = 80_000
"""Of the 87,254 that those devices hold."""
_BATCH = 1024
FLOOR = ("-m", "stepwell.cli.streams_floor")


class Scenario(msgspec.Struct, frozen=True):
    """What the users do, and what the server has to be."""

    play: Callable[[Run], Awaitable[None]]
    settings: Callable[[argparse.Namespace], list[str]]


async def _closed(run: Run) -> None:
    thinking = Thinking(run.crowd, run.args.think, run.args.tokens or TOKENS)
    await asyncio.sleep(min(SETTLE_S, run.args.seconds / 2))
    await run.begin()
    await asyncio.sleep(run.args.seconds)
    await run.stop()
    thinking.stop()
    await run.crowd.all_ended()


async def _beat(run: Run) -> None:
    """Everybody's answer is as long as lets it end when the others' do, a little after what is measured."""
    join_s, beat = _join_s(run.args), run.args.beat
    ends = steps_until(join_s + run.args.seconds + 3 * beat, join_s, run.args.users, *_device(run.args))

    def tokens(at_s: float) -> int:
        return max(sum(end > at_s for end in ends), 1)

    await spread(run.crowd, join_s, tokens)
    await asyncio.sleep(2 * beat)  # the last ones have begun
    await run.begin()
    await asyncio.sleep(run.args.seconds)
    await run.stop()
    await run.crowd.all_ended()


async def _burst(run: Run) -> None:
    await run.begin()
    await spread(run.crowd, run.args.within, lambda at_s: run.args.tokens or TOKENS)
    await run.crowd.all_ended()
    await run.stop()


def _seventy_b(args: argparse.Namespace) -> list[str]:
    return [_DEVICE, f"scheduler.running_limit={_BATCH}", "scheduler.token_budget=4096", f"memory.pages={_PAGES}"]


def _one_a_beat(args: argparse.Namespace) -> list[str]:
    """A device whose step takes as long as there are streams: one beat, when all of them generate."""
    base_s, each_s = _device(args)
    options = f"base_ns={int(base_s * NS_PER_S)},decode_request_ns={int(each_s * NS_PER_S)}"
    ends = steps_until(_join_s(args) + args.seconds + 3 * args.beat, _join_s(args), args.users, base_s, each_s)
    pages = args.users * (-(-(_PROMPT + len(ends)) // PAGE) + 1)
    zero = "prefill_token_ns=0,kv_token_ps=0,swap_page_ns=0"
    return [
        f'cost={{model="linear",options={{{options},{zero}}}}}',
        f"memory={{pages={pages},page_size={PAGE},host_pages=0}}",
        f"scheduler.running_limit={args.users}",
        f"scheduler.token_budget={max(2048, 2 * args.users)}",
    ]


def _device(args: argparse.Namespace) -> tuple[float, float]:
    """Seconds that a step takes anyway, and for each running request."""
    return 0.02 * args.beat, 0.98 * args.beat / args.users


def _join_s(args: argparse.Namespace) -> float:
    return float(max(args.users / JOINED_PER_S, 2 * args.beat))


SCENARIOS = {
    "closed": Scenario(_closed, _seventy_b),
    "beat": Scenario(_beat, _one_a_beat),
    "burst": Scenario(_burst, _seventy_b),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--users", type=int, default=1000, metavar="N", help="users at once (1000)")
    parser.add_argument(
        "--scenario", choices=[*SCENARIOS], default="closed",
        help="closed: ask, read, think; beat: all generate at once; burst: all ask within 10 s (closed)",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=30.0, metavar="S", help="that are measured (30)")
    parser.add_argument("--sse-share", type=float, default=0.5, metavar="X", help="of users; others: WebSocket (0.5)")
    parser.add_argument("--tokens", type=int, default=0, metavar="N", help=f"of an answer ({TOKENS}); beat: none")
    parser.add_argument("--think", type=float, default=THINK_S, metavar="S", help=f"mean, closed ({THINK_S:g})")
    parser.add_argument("--beat", type=float, default=1.0, metavar="S", help="seconds a token of each, beat (1)")
    parser.add_argument(
        "--within", type=float, default=BURST_S, metavar="S", help=f"seconds in which all ask, burst ({BURST_S:g})"
    )
    parser.add_argument("--policy", default="fcfs", metavar="NAME", help="scheduling policy (fcfs)")
    parser.add_argument("--journal", metavar="DIR", help="let the server write its journal into this folder")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting of the server")
    parser.add_argument("--floor", action="store_true", help="beat: the same of a bare Starlette server, after ours")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of when users ask (0)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    """Exit status 1 if a token was lost, came twice, or an answer ended as it should not."""
    _check(args)
    first = machine()
    print(as_json(first) if args.json else machine_in_words(first), flush=True)
    words = [word for setting in _settings(args) for word in ("--set", setting)]
    given = ["--model", "costmodel", "--policy", args.policy, *(["--journal", args.journal] if args.journal else [])]
    good = _tell(args, "stepwell", _against(args, [*given, *words], SERVE))
    if args.floor:
        good = _tell(args, "bare starlette", _against(args, ["--beat", str(args.beat)], FLOOR)) and good
    return 0 if good else 1


def _tell(args: argparse.Namespace, engine: str, measured: Line) -> bool:
    line = {"bench": "streams", "engine": engine, **measured}
    print(as_json(line) if args.json else in_words(line), flush=True)
    return not line["wrong"]


def _settings(args: argparse.Namespace) -> list[str]:
    """The scenario's own, and then what was asked for, which wins."""
    room = ["model.options.text=numbers", f"server.max_streams={args.users + SPARE}"]
    return [*SCENARIOS[args.scenario].settings(args), *room, *args.set]


def _check(args: argparse.Namespace) -> None:
    check_share(args.sse_share)
    if not 1 <= args.users <= MOST_USERS:
        raise UserError(f"must be between 1 and {MOST_USERS:,}, not {args.users}", field="users")
    for name in ("seconds", "think", "beat", "within"):
        if not 0 < getattr(args, name) <= 86_400:
            raise UserError(f"must be above 0 and at most 86,400 s, not {getattr(args, name):g}", field=name)
    if not 0 <= args.tokens <= 100_000:
        raise UserError(f"must be between 1 and 100,000, not {args.tokens}", field="tokens")
    if args.floor and args.scenario != "beat":
        raise UserError("is of the scenario `beat`", field="floor")
    check_descriptors(args.users, "users at once", "users")


def _against(args: argparse.Namespace, words: list[str], program: tuple[str, ...]) -> Line:
    with own_server(words, program) as server:
        gc.collect()
        gc.freeze()
        gc.disable()  # what a crowd holds lives as long as it does
        try:
            with asyncio.Runner(loop_factory=_loop) as runner:
                return runner.run(_measure(args, server, metrics=program is SERVE))
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
    warm = Crowd(at.hostname, at.port, 2, 0.5, Tally(), args.seed)
    await warm.open()
    await spread(warm, 0.0, lambda at_s: 2)
    await warm.all_ended()
    warm.disperse()
    beats_ns = int(LATE * args.beat * NS_PER_S) if args.scenario == "beat" else 0
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
