"""What a crowd does to a server, and what that server has to be: the scenarios of ``stepwell bench streams``."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter_ns

import msgspec

from stepwell.cli.streams_crowd import Thinking, User, spread, steps_until
from stepwell.cli.streams_probe import OPEN
from stepwell.cli.streams_run import Run
from stepwell.cli.streams_stalled import ENDLESS, Stalled
from stepwell.cli.streams_tally import Heard
from stepwell.core.types import NS_PER_S

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
STEADY_PAGES = 256
"""For each stream: 4,000 tokens."""


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
    ends = beat_ends(run.args)

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


async def _stalled(run: Run) -> None:
    """First alone, then beside many who have stopped reading and whose buffers are full."""
    args, crowd = run.args, run.crowd
    join_s = _join_s(args)
    last_s = join_s + args.stalled / JOINED_PER_S + args.fill + 2 * args.seconds + 10 * args.beat
    await spread(crowd, join_s, lambda at_s: max(int((last_s - at_s) / args.beat), 1))
    await asyncio.sleep(2 * args.beat)
    await run.begin()
    await asyncio.sleep(args.seconds)
    await run.stop()
    run.keep()
    stalled = [Stalled(f"{crowd.host}:{crowd.port}", over_socket=bool(place % 2)) for place in range(args.stalled)]
    for each in stalled:
        await each.open(crowd.loop, crowd.host, crowd.port)
        await asyncio.sleep(1 / JOINED_PER_S)
    await asyncio.sleep(args.fill)
    await run.begin()
    await asyncio.sleep(args.seconds)
    await run.stop()
    await crowd.all_ended()
    for each in stalled:
        each.close()


async def _steps(run: Run) -> None:
    """First with hardly anybody there, then with everybody; all leave in the end."""
    args, crowd = run.args, run.crowd

    async def ask(users: Sequence[User]) -> None:
        for user in users:
            user.ask(ENDLESS, Heard(run.tally, 0, perf_counter_ns()))
            await asyncio.sleep(1 / JOINED_PER_S)
        await asyncio.sleep(2 + 2 * args.beat)
        await run.begin()
        await asyncio.sleep(args.seconds)
        await run.stop()

    await ask(crowd.users[: args.few])
    run.keep()
    await ask(crowd.users[args.few :])


async def _leave(run: Run) -> None:
    """All generate, and then all but a few leave in one instant."""
    args, crowd = run.args, run.crowd
    asked = []
    for user in crowd.users:
        asked.append((user, Heard(run.tally, 0, perf_counter_ns())))
        user.ask(ENDLESS, asked[-1][1])
        await asyncio.sleep(1 / JOINED_PER_S)
    await asyncio.sleep(2 + 2 * args.beat)
    await run.begin()
    await asyncio.sleep(args.seconds)
    await run.stop()
    run.keep()
    await run.begin()
    for user, heard in asked[args.few :]:
        user.leave()
        heard.leave()
    await asyncio.sleep(args.seconds)
    await run.stop()
    left_over = round(run.after.total(OPEN)) - args.few
    if left_over:
        run.tally.problems["answers of clients that left, still open"] += left_over


def _seventy_b(args: argparse.Namespace) -> list[str]:
    return [_DEVICE, f"scheduler.running_limit={_BATCH}", "scheduler.token_budget=4096", f"memory.pages={_PAGES}"]


def _one_a_beat(args: argparse.Namespace) -> list[str]:
    """A device whose step takes as long as there are streams: one beat, when all of them generate."""
    base_s, each_s = beat_device(args)
    options = f"base_ns={int(base_s * NS_PER_S)},decode_request_ns={int(each_s * NS_PER_S)}"
    pages = args.users * (-(-(_PROMPT + len(beat_ends(args))) // PAGE) + 1)
    zero = "prefill_token_ns=0,kv_token_ps=0,swap_page_ns=0"
    return [
        f'cost={{model="linear",options={{{options},{zero}}}}}',
        f"memory={{pages={pages},page_size={PAGE},host_pages=0}}",
        f"scheduler.running_limit={args.users}",
        f"scheduler.token_budget={max(2048, 2 * args.users)}",
    ]


def _steady(args: argparse.Namespace) -> list[str]:
    """A device whose step takes one beat, whoever is in it; and clients whose buffers are soon full."""
    each = args.users + args.stalled
    zero = "prefill_token_ns=0,decode_request_ns=0,kv_token_ps=0,swap_page_ns=0"
    pages = each * ((_PROMPT + ENDLESS) // PAGE if each < 100 else STEADY_PAGES)
    return [
        f'cost={{model="linear",options={{base_ns={int(args.beat * NS_PER_S)},{zero}}}}}',
        f"memory={{pages={pages},page_size={PAGE},host_pages=0}}",
        f"scheduler.running_limit={each}",
        f"scheduler.token_budget={max(2048, 2 * each)}",
        "server.send_buffer_kib=8",
    ]


def beat_device(args: argparse.Namespace) -> tuple[float, float]:
    """Seconds that a step takes anyway, and for each running request: one beat with all users."""
    return 0.02 * args.beat, 0.98 * args.beat / args.users


def beat_ends(args: argparse.Namespace) -> Sequence[float]:
    """When such a device's steps end, until a little after what is measured: the first answer has a token of each."""
    join_s = _join_s(args)
    return steps_until(join_s + args.seconds + 3 * args.beat, join_s, args.users, *beat_device(args))


def _join_s(args: argparse.Namespace) -> float:
    return float(args.join or max(args.users / JOINED_PER_S, 2 * args.beat))


SCENARIOS = {
    "closed": Scenario(_closed, _seventy_b),
    "beat": Scenario(_beat, _one_a_beat),
    "burst": Scenario(_burst, _seventy_b),
    "stalled": Scenario(_stalled, _steady),
    "steps": Scenario(_steps, _steady),
    "leave": Scenario(_leave, _steady),
}
