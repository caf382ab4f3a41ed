"""One run of a crowd against a server, and the stretch of it that is measured."""

from __future__ import annotations

import argparse
import os

from stepwell.cli.process_stats import cpu_s
from stepwell.cli.streams_crowd import ClientLag, Crowd
from stepwell.cli.streams_probe import Moment, Probe
from stepwell.cli.streams_tally import Tally


class Run:
    """Made inside the loop.  ``args`` are the command's."""

    def __init__(self, args: argparse.Namespace, tally: Tally, crowd: Crowd, probe: Probe) -> None:
        self.args, self.tally, self.crowd, self.probe = args, tally, crowd, probe
        self.lag = ClientLag(crowd.loop)
        self.before: Moment
        self.after: Moment
        self.client_cpu_s = 0.0

    async def begin(self) -> None:
        """What is measured begins."""
        self.before = await self.probe.look()
        self.client_cpu_s = -cpu_s(os.getpid())
        self.lag.us = self.lag.us[:0]
        self.tally.begin()

    async def stop(self) -> None:
        """And ends."""
        self.tally.stop()
        self.client_cpu_s += cpu_s(os.getpid())
        self.lag.stop()
        self.after = await self.probe.look()
