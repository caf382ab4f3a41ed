"""HC-3, measured: what one huge prompt and ten large ones cost those who stream beside them.

    python -m stepwell.benchmarks.hc3            25 streams (5 over WebSocket), with and without the large prompts
    python -m stepwell.benchmarks.hc3 --fits     in a pool where the ten prompts of 1 MB fit, and are answered

Prints a line of JSON a run: how long ``GET /health`` took, and the gaps between the pieces of a stream, in ms.  The
goal is a p99 of /health, and a growth of the gaps, under 100 ms.  The clients run on the machine of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Sequence
from typing import Any

from stepwell.core.build_kind import build_kind
from stepwell.tests.e2e.crowd import Probe, chat, post, streams
from stepwell.tests.e2e.serving import Server, serving

STEP_US = 20_000
SAID = [f"{index:04}" * 75 for index in range(25)]
"""300 tokens each, and a token a step: about six seconds."""
SOCKETS = 5
FITS = ("--set", "memory.pages=700000", "--set", "scheduler.token_budget=65536")


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def row(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """p50, p99 and the worst, in ms."""
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {f"{name}_{label}_ms": round(1000 * quantile(seconds, share), 1) for label, share in shares.items()}


async def crowd(server: Server, bodies: Sequence[bytes]) -> tuple[list[float], list[int]]:
    """The gaps of all streams, and the statuses of what was posted beside them, ten steps after they began."""
    running = asyncio.create_task(streams(server.port, SAID, SOCKETS))
    await asyncio.to_thread(server.until, lambda: server.metric("stepwell:streams_open") == len(SAID))
    await asyncio.sleep(10 * STEP_US / 1e6)
    posted = await asyncio.gather(*(asyncio.to_thread(post, server.port, body) for body in bodies))
    heard = await running
    assert [each.text for each in heard] == SAID
    return [gap for each in heard for gap in each.gaps_s], [status for status, _ in posted]


def measure(room: Sequence[str], bodies: Sequence[bytes], **labels: Any) -> dict[str, Any]:
    with serving(*room, step_us=STEP_US) as server:
        asyncio.run(crowd(server, ()))  # once for nothing: imports, caches
        with Probe(server.port, 0.01).probing() as probe:
            gaps_s, statuses = asyncio.run(crowd(server, bodies))
        lag_ms = round(1000 * server.metric("stepwell:loop_lag_seconds"), 1)
    assert set(probe.statuses) == {200}
    return {
        **labels,
        "posted": {str(status): statuses.count(status) for status in sorted(set(statuses))},
        **row("health", probe.took_s),
        **row("gap", gaps_s),
        "loop_lag_ms": lag_ms,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fits", action="store_true", help="a pool in which the prompts of 1 MB fit")
    fits = parser.parse_args().fits
    room = FITS if fits else ()
    large = chat("y" * 1_000_000, max_tokens=20)
    labels = {"benchmark": "hc3", "fits": fits, "streams": len(SAID), "step_ms": STEP_US / 1000, "core": build_kind()}
    labels |= {"cores": os.cpu_count(), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    quiet = measure(room, (), **labels)
    print(json.dumps(quiet), flush=True)
    loaded = measure(room, (chat("x" * 27_000_000), *[large] * 10), **labels)
    growth = {
        f"gap_growth_{key}_ms": round(loaded[f"gap_{key}_ms"] - quiet[f"gap_{key}_ms"], 1) for key in ("p99", "max")
    }
    print(json.dumps({**loaded, **growth}), flush=True)


if __name__ == "__main__":
    main()
