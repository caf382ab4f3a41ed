"""What the gate and the limits add to a request, in microseconds of the event loop's time.

    python benchmarks/gateway.py [--calls 20000]

An application that answers at once is called with and without the gate in front of it, with the headers that the OpenAI
SDK sends; the difference is what the gate costs.  Limits are measured by themselves.  Each figure is the best of five
rounds: what is slower was held up by something else.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from typing import Any

from stepwell.core.config import Config, validate
from stepwell.core.config_gateway import GatewayConfig, KeyConfig
from stepwell.transports.gateway.digests import digest_of
from stepwell.transports.gateway.gate import Gate
from stepwell.transports.gateway.gateway import Gateway
from stepwell.transports.gateway.guards import Guard
from stepwell.transports.gateway.limits import Cost, Limits
from stepwell.transports.http.requests import ChatRequest
from stepwell.transports.wire import Wire

ROUNDS = 5
KEY = "sw-" + "k" * 43
SDK = {
    "host": "127.0.0.1:8000",
    "accept-encoding": "gzip, deflate",
    "connection": "keep-alive",
    "accept": "application/json",
    "content-type": "application/json",
    "user-agent": "OpenAI/Python 3.57.0",
    "x-stainless-lang": "python",
    "x-stainless-package-version": "3.57.0",
    "x-stainless-os": "Linux",
    "x-stainless-arch": "x64",
    "x-stainless-runtime": "CPython",
    "x-stainless-runtime-version": "3.11.7",
    "authorization": f"Bearer {KEY}",
    "x-stainless-async": "false",
    "x-stainless-retry-count": "0",
    "x-stainless-read-timeout": "600",
    "content-length": "92",
}
HEAD: Any = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
BODY: Any = {"type": "http.response.body", "body": b"{}"}


async def answers(scope: Any, receive: Any, send: Any) -> None:
    await send(HEAD)
    await send(BODY)


def scope_of() -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in SDK.items()],
    }


def config_of(keys: int, **limits: int) -> Config:
    made = [KeyConfig(name=f"k{number}", digest=digest_of(f"sw-{number}".encode())) for number in range(keys - 1)]
    mine = [KeyConfig(name="mine", digest=digest_of(KEY.encode()), tenant="acme")] if keys else []
    return validate(Config(keys=(*made, *mine), gateway=GatewayConfig(**limits)))  # type: ignore[arg-type]


def per_call_us(calls: int, app: Any) -> float:
    """Of one call of an application."""

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None: ...

    async def many() -> float:
        scope = scope_of()
        begun = time.perf_counter()
        for _ in range(calls):
            await app(scope, receive, send)
        return (time.perf_counter() - begun) / calls * 1e6

    return min(asyncio.run(many()) for _ in range(ROUNDS))


def per_work_us(calls: int, work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(calls):
            work()
        best = min(best, (time.perf_counter() - begun) / calls * 1e6)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000, help="in a round (20000)")
    calls = parser.parse_args().calls
    guards = (Guard("/admin"),)
    bare = per_call_us(calls, answers)
    print(f"{'nothing in front':<44} {bare:6.2f} µs")
    for keys, name in ((0, "gate, open"), (1, "gate, 1 key"), (10_000, "gate, 10,000 keys")):
        took = per_call_us(calls, Gate(answers, Gateway(config_of(keys)), guards))
        print(f"{name:<44} {took - bare:6.2f} µs more")
    config = config_of(10_000, requests_per_minute=1 << 30, tokens_per_minute=1 << 30, concurrent=1 << 20)
    gateway, limits = Gateway(config), Limits(config)
    wire = Wire(config, gateway, "echo")
    limits.take("acme", [100], 1, 100, 0)
    gate = Gate(answers, gateway, guards, lambda headers: limits.headers(wire.tenant(headers), time.monotonic_ns()))
    print(f"{'gate, 10,000 keys, x-ratelimit headers':<44} {per_call_us(calls, gate) - bare:6.2f} µs more")

    def charge() -> None:
        now_ns = time.monotonic_ns()
        limits.check("acme", now_ns)
        limits.take("acme", [100], 1, 100, now_ns).settle(Cost(100, 50, 80), now_ns)

    print(f"{'limits: check, reserve, settle':<44} {per_work_us(calls, charge):6.2f} µs")
    asked, caller = ChatRequest(messages=b"[]"), {**SDK, "x-stepwell-caller": "key mine"}  # type: ignore[arg-type]
    open_wire = Wire(config_of(0), None, "echo")
    before = per_work_us(calls, lambda: open_wire.standing(asked, SDK))
    after = per_work_us(calls, lambda: wire.standing(asked, caller))
    print(f"{'class and tenant by the key':<44} {after - before:6.2f} µs more ({before:.2f} without keys)")


if __name__ == "__main__":
    main()
