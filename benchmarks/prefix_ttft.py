"""What prefix reuse saves a client: the time to the first token of a chat's second turn, and of a request whose system
prompt an earlier one had, too, with the allocators ``prefix`` and ``paged``.

    python -m stepwell.benchmarks.prefix_ttft [--model smollm2] [--rounds 5] [--allocator NAME]

Each round has words of its own, asks one request after another over HTTP, and counts to the first piece of text.
Prints a line of JSON an allocator: medians in ms, and the tokens of those prompts and how many of them were found.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from stepwell.tests.e2e.serving import Server, serving

WORDS = (Path(__file__).resolve().parent.parent / "LICENSE").read_text().split()
SYSTEM_WORDS = 720
"""About 1,000 tokens."""

Message = dict[str, str]


class Asked(msgspec.Struct, frozen=True):
    """One answer: when its first text came, and what its usage says of the prompt."""

    ttft_ms: float
    prompt: int
    cached: int
    text: str


def ask(server: Server, messages: list[Message], tokens: int) -> Asked:
    """Stream an answer of ``tokens``."""
    body = {"messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True}
    data = json.dumps({**body, "stream_options": {"include_usage": True}})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    first_s = 0.0
    text = ""
    usage: dict[str, Any] = {}
    start_s = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", data, {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        event: dict[str, Any] = json.loads(line[6:])
        piece = "".join(each["delta"].get("content") or "" for each in event.get("choices", ()))
        if piece and not first_s:
            first_s = time.perf_counter() - start_s
        text += piece
        usage = event.get("usage") or usage
    connection.close()
    return Asked(1000 * first_s, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], text)


def words(dice: random.Random, count: int) -> str:
    return " ".join(dice.choice(WORDS) for _ in range(count))


def user(dice: random.Random, count: int = 12) -> Message:
    return {"role": "user", "content": f"What do you make of: {words(dice, count)}?"}


def second_turn(server: Server, dice: random.Random) -> Asked:
    """A question of some 300 tokens, an answer of 128, and a short question."""
    turns = [user(dice, 200)]
    turns.append({"role": "assistant", "content": ask(server, turns, 128).text})
    return ask(server, [*turns, user(dice)], 8)


def shared_system(server: Server, dice: random.Random) -> Asked:
    """Two chats with one system prompt of about 1,000 tokens."""
    system = {"role": "system", "content": words(dice, SYSTEM_WORDS)}
    ask(server, [system, user(dice)], 8)
    return ask(server, [system, user(dice)], 8)


MEASURED: dict[str, Callable[[Server, random.Random], Asked]] = {
    "second_turn": second_turn,
    "shared_system": shared_system,
}


def measure(allocator: str, model: str, rounds: int) -> dict[str, Any]:
    line: dict[str, Any] = {"benchmark": "prefix_ttft", "allocator": allocator, "model": model, "rounds": rounds}
    with serving("--model", model, "--set", f"memory.allocator={allocator}") as server:
        ask(server, [user(random.Random(-1))], 8)  # once for nothing
        for name, once in MEASURED.items():
            found = [once(server, random.Random(seed)) for seed in range(rounds)]
            line[f"{name}_ttft_p50_ms"] = round(median(each.ttft_ms for each in found), 1)
            line[f"{name}_prompt"] = median(each.prompt for each in found)
            line[f"{name}_cached"] = median(each.cached for each in found)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="as for `stepwell serve` (smollm2)")
    parser.add_argument("--rounds", type=int, default=5, help="of each kind (5)")
    parser.add_argument("--allocator", action="append", help="only this one (may be repeated)")
    args = parser.parse_args()
    for allocator in args.allocator or ("prefix", "paged"):
        line = measure(allocator, args.model, args.rounds)
        line |= {"cores": os.cpu_count(), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
