"""The load clients that people use, each in an environment of its own, against a running server.

    python -m stepwell.benchmarks.clients.run                     all of them; the first time installs some 8 GB
    python -m stepwell.benchmarks.clients.run guidellm --requests 40
    python -m stepwell.benchmarks.clients.run aiperf --keep out/   keeps what the client wrote

The server is the model ``echo`` with the step times of a linear cost model, and tokens that are bytes, so a client that
counts tokens itself has to come to the same numbers.  Prints a client's own table, then one line of JSON: what the
client says it got beside what the server says it gave.  Exit status 1 if these differ.  ``README.md`` beside this file
has the results.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepwell.benchmarks.clients.kinds import CLIENTS, Client, Load
from stepwell.benchmarks.clients.tokenizer import write_tokenizer
from stepwell.sim.bench import machine

HOME = Path(__file__).resolve().parents[2] / ".cache" / "clients"
STEPS = "{base_ns=5000000,prefill_token_ns=2000,decode_request_ns=20000,kv_token_ps=0,swap_page_ns=0}"
PROMPTS = Path(__file__).resolve().parent / "prompts.txt"
PATIENCE_S = 900
"""For one client: importing what some of them bring takes minutes on a machine that is busy."""


def install(client: Client) -> Path:
    """Its folder of commands, made unless it is there."""
    folder = HOME / client.package.replace("==", "-")
    if not (folder / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", client.package], check=True)
        (folder / "installed").write_text(client.package + "\n")
    return folder / "bin"


@contextmanager
def serving() -> Iterator[str]:
    """A server of its own; yields its address."""
    command = [sys.executable, "-m", "stepwell", "serve", "--port", "0", "--set", f"cost.options={STEPS}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while "try: curl" not in said:
                line = process.stdout.readline()
                if not line:
                    raise SystemExit(f"the server did not start:\n{said}")
                said += line
            found = re.search(r"(http://\S+)/v1", said)
            assert found
            yield found[1]
        finally:
            process.terminate()


def counted(url: str) -> dict[str, int]:
    """What the server has finished, and how many tokens it gave."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()

    def total(name: str, label: str = "") -> int:
        return int(
            sum(float(each.rpartition(" ")[2]) for each in lines if each.startswith(name + "{") and label in each)
        )

    success = "vllm:request_success_total"
    return {
        "completed": total(success, '"stop"') + total(success, '"length"'),
        "aborted": total(success, '"abort"'),
        "failed": total(success, '"error"'),
        "output_tokens": total("vllm:generation_tokens_total"),
    }


def run(client: Client, requests: int, folder: Path) -> bool:
    """Whether client and server agree."""
    bin_folder = install(client)
    write_tokenizer(folder / "tokenizer")
    (folder / "client").mkdir()
    with serving() as url:
        load = Load(url, "echo", str(folder / "tokenizer"), str(folder / "client"), requests, str(PROMPTS))
        command = [str(bin_folder / client.command[0]), *(part.format(**load.words) for part in client.command[1:])]
        environment = {**os.environ, **client.environment, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
        environment.pop("PYTHONPATH", None)
        began = time.monotonic()
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        took_s = time.monotonic() - began
        gave = counted(url)
    print(f"$ {' '.join([client.command[0], *command[1:]])}\n{done.stdout[-12_000:]}")
    if done.returncode:
        print(done.stderr[-4000:], file=sys.stderr)
    got = client.totals(folder / "client") if not done.returncode else None
    agree = got == (gave["completed"], gave["output_tokens"]) and not gave["failed"]
    told = {"bench": "clients", "client": client.package, "status": done.returncode, "took_s": round(took_s, 1)}
    told |= {"client_got": got, "server_gave": gave, "agree": agree}
    print(json.dumps(told), flush=True)
    return agree


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"{', '.join(CLIENTS)} (all)")
    parser.add_argument("--requests", type=int, default=40, metavar="N", help="each (40)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder for what clients write (a temporary one)")
    args = parser.parse_args()
    unknown = [each for each in args.clients if each not in CLIENTS]
    if unknown:
        parser.error(f"no client {unknown[0]!r}; known: {', '.join(CLIENTS)}")
    print(json.dumps({"bench": "machine", **machine()}))
    agree = []
    for name in args.clients or CLIENTS:
        with tempfile.TemporaryDirectory() as scratch:
            folder = (args.keep / name if args.keep else Path(scratch)).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            agree.append(run(CLIENTS[name], args.requests, folder))
    return 0 if all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())
