"""``stepwell serve`` in a process of its own, on a free port of the loopback, and what its clients ask of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest

for needed in ("starlette", "uvicorn", "websockets", "openai"):
    pytest.importorskip(needed, reason="needs the extras `serve` and `dev`")

PATIENCE_S = 60
"""For things that must happen at all; nothing is timed."""


@dataclass
class Server:
    """A running one."""

    process: subprocess.Popen[str]
    url: str
    greeting: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1].partition("/")[0])

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all series that have these labels."""
        total = 0.0
        for line in self.get("/metrics").splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(f'{key}="{word}"' in series for key, word in labels.items()):
                total += float(value)
        return total

    @property
    def idle(self) -> bool:
        gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        return not any(self.metric(name) for name in (*gauges, "stepwell:streams_open"))

    def until(self, condition: Callable[[], bool]) -> None:
        """It must come true."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.get("/metrics")
            time.sleep(0.02)

    def stop(self, signals: int = 1) -> int:
        """Ask it to; returns its exit status."""
        for _ in range(signals):
            self.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
        return self.process.wait(PATIENCE_S)


@contextmanager
def serving(
    *arguments: str,
    step_us: int = 500,
    errors: Path | None = None,
    cost: bool = True,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """``stepwell serve`` with the echo backend, ready.  ``errors``: a file for what it writes to stderr.

    Without ``cost`` the arguments say how long a step takes.
    """
    fixed = f"{{base_ns={step_us * 1000},prefill_token_ns=0,decode_request_ns=0,kv_token_ps=0,swap_page_ns=0}}"
    timed = ["--set", f"cost.options={fixed}"] if cost else []
    command = [sys.executable, "-m", "stepwell", "serve", "--port", "0", *timed, *arguments]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STEPWELL__")}
    environment |= environ or {}
    with errors.open("w") if errors else nullcontext() as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)
    try:
        assert process.stdout is not None
        greeting = []
        for line in process.stdout:
            greeting.append(line.rstrip())
            if line.startswith("try: curl"):
                break
        found = re.search(r"https?://\S+/v1", "\n".join(greeting))
        assert found, f"it did not start: {greeting}, status {process.poll()}"
        yield Server(process, found[0], greeting)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
