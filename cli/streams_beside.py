"""Rounds in which a few requests, or many, run on a server of a real model, and what the processes do meanwhile.

``cli.streams_company`` says who else is there; ``cli.streams_rounds`` reads how long the steps took.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from urllib.parse import urlsplit

import msgspec

from stepwell.cli.bench_server import OwnServer
from stepwell.cli.process_stats import cpu_s
from stepwell.cli.streams_crowd import ClientLag
from stepwell.cli.streams_probe import LAG, OPEN, Moment, Probe, quantile_s
from stepwell.cli.streams_tally import Tally
from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_S
from stepwell.sim.stats import percentiles

TOKENS = 200
"""Of an answer, in a round."""
_PATIENCE_S = 120.0
"""For the server to come to a state."""
_LOOK_S = 0.2


class Round(msgspec.Struct, frozen=True):
    """What the processes did while all that run were decoding."""

    crowd: int
    streams_open: int
    server_cores: float
    worker_cores: float
    client_cores: float
    loop_lag_p99_ms: float | None
    client_lag_p99_ms: float | None


class Runner:
    """Hears one answer of a round."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.problem = ""

    def named(self, number: str) -> None:
        """Of no use here."""

    def heard(self, text: str) -> None:
        self.begun.set()

    def over(self, reason: str) -> None:
        self._end("" if reason == "length" else f"an answer that was measured ended by {reason!r}")

    def refused(self, code: str, retry_after: str) -> None:
        self._end(f"an answer that was to be measured was refused: {code}")

    def broken(self, why: str) -> None:
        self._end(why)

    def _end(self, problem: str) -> None:
        self.problem = problem
        self.begun.set()
        self.ended.set()


class Rounds:
    """Those of one run against a server.  ``problems`` are what should not have happened."""

    def __init__(self, args: argparse.Namespace, server: OwnServer) -> None:
        at = urlsplit(server.url)
        assert at.hostname is not None
        assert at.port is not None
        self.args, self.host, self.port = args, at.hostname, at.port
        self.tokens: int = args.tokens or TOKENS
        self.probe = Probe(server.pid, f"{self.url}/metrics")
        self.tally = Tally(numbered=False)
        self.problems: list[str] = []
        self.rounds: list[Round] = []

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def until(self, true: Callable[[Moment], bool], what: str) -> None:
        """Look at the server until it is; raises ``UserError`` if ``what`` does not come."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _PATIENCE_S
        while not true(await self.probe.look()):
            if loop.time() > deadline_s:
                raise UserError(f"waited {_PATIENCE_S:g} s for {what}", field="users")
            await asyncio.sleep(_LOOK_S)

    async def watch(self, crowd: int, runners: Sequence[Runner]) -> None:
        """What everybody does from now, when all decode, until the first of them has ended."""
        lag = ClientLag(asyncio.get_running_loop())
        before, began_ns, own_s = await self.probe.look(), perf_counter_ns(), cpu_s(os.getpid())
        ends = [asyncio.ensure_future(runner.ended.wait()) for runner in runners]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        seconds, own_s = (perf_counter_ns() - began_ns) / NS_PER_S, cpu_s(os.getpid()) - own_s
        lag.stop()
        after = await self.probe.look()
        await asyncio.wait(ends)
        self.problems += [runner.problem for runner in runners if runner.problem]
        self.rounds.append(_told(crowd, before, after, seconds, own_s, lag))


def _told(crowd: int, before: Moment, after: Moment, seconds: float, own_s: float, lag: ClientLag) -> Round:
    lag_s = quantile_s(before, after, LAG, 0.99)
    (client_us,) = percentiles(lag.us, (0.99,))
    return Round(
        crowd=crowd,
        streams_open=round(min(before.total(OPEN), after.total(OPEN))),
        server_cores=round((after.cpu_s - before.cpu_s) / seconds, 2),
        worker_cores=round((after.worker_cpu_s - before.worker_cpu_s) / seconds, 2),
        client_cores=round(own_s / seconds, 2),
        loop_lag_p99_ms=None if lag_s is None else round(lag_s * 1e3, 1),
        client_lag_p99_ms=None if client_us is None else round(client_us / 1e3, 1),
    )
