"""How finely prompts should be compared: what is found, and what the keys cost, by tokens a key and tokens a page.

    python -m stepwell.benchmarks.key_tokens

Simulated chats: 400 of 1 to 6 turns behind one of 20 system prompts of 50 to 1,500 tokens; questions of 10 to 200
tokens, answers of 20 to 400.  A turn's prompt is everything said before and the question.  The pool holds them all, so
that only the comparison matters.  Keys are made and journalled as a server would.  One JSON object a line.
"""

from __future__ import annotations

import json
import time

import msgspec

from stepwell.core.config import Config, MemoryConfig, SchedulerConfig, validate
from stepwell.core.page_keys import page_keys
from stepwell.core.types import NS_PER_S
from stepwell.sim.bench import machine
from stepwell.sim.run import simulate
from stepwell.sim.workload.draws import uniforms
from stepwell.sim.workload.request import TraceRequest, Workload

CHATS, SYSTEMS, TURNS = 400, 20, 6
CASES = (
    *(("prefix", page, 0) for page in (16, 64, 256)),
    *(("radix", page, key) for page in (16, 64, 256) for key in (1, 2, 4, 8, 16) if key <= page),
)


def chats() -> Workload:
    """A chat every quarter of a second; its turns are 20 seconds apart."""
    draws = [uniforms(0, purpose, CHATS * TURNS).tolist() for purpose in range(5)]
    systems = [50 + int(draw * 1_451) for draw in draws[0][:SYSTEMS]]
    requests = []
    for chat in range(CHATS):
        system = int(draws[1][chat] * SYSTEMS)
        said = systems[system]
        for turn in range(1 + int(draws[2][chat] * TURNS)):
            prompt = said + 10 + int(draws[3][chat * TURNS + turn] * 191)
            answer = 20 + int(draws[4][chat * TURNS + turn] * 381)
            # One key a token: who says it, and where.
            keys = [system << 32 | at for at in range(systems[system])]
            keys += [1 << 60 | chat << 32 | at for at in range(systems[system], prompt)]
            at_ns = chat * NS_PER_S // 4 + turn * 20 * NS_PER_S
            requests.append(TraceRequest(at_ns, prompt, answer, keys=keys))
            said = prompt + answer
    return Workload("chats", requests, key_tokens=1)


def key_us(tokens: int) -> float:
    """Microseconds that a key of so many tokens takes."""
    prompt = list(range(4_096))
    start_ns = time.perf_counter_ns()
    keys = page_keys(prompt, tokens, b"salt")
    return (time.perf_counter_ns() - start_ns) / len(keys) / 1000


def main() -> None:
    """Print the lines."""
    print(json.dumps(machine()), flush=True)
    workload = chats()
    prompts = sum(each.prompt_tokens for each in workload.requests)
    for allocator, page_size, key_tokens in CASES:
        options: dict[str, object] = {"key_tokens": key_tokens} if key_tokens else {}
        config = validate(
            Config(
                scheduler=SchedulerConfig(token_budget=8_192, running_limit=1_024),
                memory=MemoryConfig(
                    allocator=allocator, pages=1 << 22, page_size=page_size, host_pages=0, options=options
                ),
            )
        )
        result = simulate(config, workload=workload)
        size = key_tokens or page_size
        keys = sum(each.prompt_tokens // size for each in workload.requests)
        written = sum(
            len(msgspec.json.encode([(1 << 63) + 1] * (each.prompt_tokens // size))) for each in workload.requests
        )
        line = {
            "bench": "key_tokens",
            "allocator": allocator,
            "page_size": page_size,
            "key_tokens": size,
            "found": round(result.metrics.cached_tokens / prompts, 4),
            "keys_per_request": round(keys / len(workload)),
            "key_us": round(key_us(size), 2),
            "journal_bytes_per_request": round(written / len(workload)),
            "ttft_p50_ms": round(result.summary.all.ttft_ms.p50 or 0, 2),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
