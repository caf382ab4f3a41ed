"""One run of a crowd against a server, and the stretch of it that is measured."""

from __future__ import annotations

import argparse
import os
from array import array

import msgspec

from stepwell.cli.process_stats import cpu_s
from stepwell.cli.streams_crowd import ClientLag, Crowd
from stepwell.cli.streams_probe import STEPS, Moment, Probe
from stepwell.cli.streams_tally import Tally


class Stretch(msgspec.Struct, frozen=True):
    """A part of a run, with which a later one is compared."""

    step_ms: float | None
    gaps_us: array[int]
    rss_bytes: int


class Run:
    """Made inside the loop.  ``args`` are the command's."""

    def __init__(self, args: argparse.Namespace, tally: Tally, crowd: Crowd, probe: Probe) -> None:
        self.args, self.tally, self.crowd, self.probe = args, tally, crowd, probe
        self.lag_us = array("L")
        """How late this loop was while measuring."""
        self._lag = ClientLag(crowd.loop)
        self.before: Moment
        self.after: Moment
        self.first: Stretch | None = None
        """What ``keep`` put aside."""
        self.client_cpu_s = 0.0

    async def begin(self) -> None:
        """What is measured begins."""
        self.before = await self.probe.look()
        self.client_cpu_s = -cpu_s(os.getpid())
        self._lag.us = self._lag.us[:0]
        self.tally.begin()

    async def stop(self) -> None:
        """And ends."""
        self.tally.stop()
        self.lag_us = self._lag.us[:]
        self.client_cpu_s += cpu_s(os.getpid())
        self.after = await self.probe.look()

    def keep(self) -> None:
        """That was the first stretch; another follows."""
        self.first = Stretch(self.step_ms, self.tally.gaps_us[:], self.probe.rss())
        self.tally.forget()

    @property
    def step_ms(self) -> float | None:
        """From one step to the next, while measuring; None if there was none."""
        steps = self.after.total(STEPS) - self.before.total(STEPS)
        return 1e3 * self.tally.seconds / steps if steps else None
