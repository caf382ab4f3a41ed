"""What limits a run is said of whoever has no time left, the load generator's own fault first."""

from __future__ import annotations

import pytest

from stepwell.cli.streams_line import limit_of
from stepwell.sim.bench import Line

CALM: Line = {"client_lag_p99_ms": 5.0, "client_cores": 0.3, "server_cores": 0.8, "in_line": 100, "users": 10_000}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"client_lag_p99_ms": None}, ""),
        ({"client_lag_p99_ms": 51.0, "server_cores": 0.95, "in_line": 101}, "the load generator"),
        ({"client_cores": 0.91}, "the load generator"),
        ({"server_cores": 0.91}, "the server's event loop: its core is full"),
        ({"in_line": 101}, "the device: 101 wait in line for it"),
        ({"server_cores": 0.91, "in_line": 2048}, "full; and the device: 2,048 wait"),
    ],
)
def test_what_limits(changes: Line, said: str) -> None:
    found = limit_of({**CALM, **changes})
    assert said in found
    assert bool(found) == bool(said)
