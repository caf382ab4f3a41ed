"""Bodies of all connections together are bounded: counted as they come in, and given back when they are understood."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from stepwell.tests.transports.house import Call, chat, idle, make_service, until, visit

KIB = 1 << 10


@dataclass
class Slow(Call):
    """Sends its body in two parts, the second when it is told to."""

    first: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.go_on = anyio.Event()
        self._sent = 0

    async def receive(self) -> dict[str, Any]:
        data = json.dumps(self.body).encode()
        self._sent += 1
        if self._sent == 1:
            return {"type": "http.request", "body": data[: self.first], "more_body": True}
        if self._sent == 2:
            await self.go_on.wait()
            return {"type": "http.request", "body": data[self.first :], "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_what_is_being_read_of_all_bodies_is_bounded(path: str) -> None:
    service = make_service(server={"bodies_mib": 8 / KIB}, memory={"pages": 4000}, lengths={1: 2, 2: 2})
    text = "x" * 6 * KIB
    body = chat(text) if path.endswith("completions") else {"input": text}

    async def test(app: Any) -> None:
        slow, refused = Slow(path, body, first=5 * KIB), Call(path, body)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow.run, app)
            await until(lambda: service.bodies.size == 5 * KIB)
            await refused.run(app)
            assert refused.status == 429
            assert json.loads(refused.text)["error"]["code"] == "too_many_bytes"
            assert service.bodies.size == 5 * KIB
            slow.go_on.set()
            await until(lambda: slow.whole)
            slow.left.set()
        assert slow.status == 200
        assert service.bodies.size == 0
        again = Call(path, body)
        await again.run(app)
        assert again.status == 200
        await until(lambda: idle(service))

    visit(service, test)


def test_a_stream_holds_no_room_for_a_body_that_is_understood() -> None:
    service = make_service(step_us=1000, lengths={1: 100_000}, memory={"pages": 4000})

    async def test(app: Any) -> None:
        call = Call("/v1/chat/completions", chat("x" * KIB, stream=True))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call.run, app)
            await until(lambda: bool(call.parts))
            assert service.bodies.size == 0
            call.left.set()

    visit(service, test)


def test_who_leaves_in_the_middle_of_a_body_gives_its_room_back() -> None:
    service = make_service()

    class Leaving(Slow):
        async def receive(self) -> dict[str, Any]:
            self._sent += 1
            if self._sent == 1:
                return {"type": "http.request", "body": b"x" * KIB, "more_body": True}
            assert service.bodies.size == KIB
            return {"type": "http.disconnect"}

    async def test(app: Any) -> None:
        await Leaving("/v1/completions", {}).run(app)
        assert service.bodies.size == 0

    visit(service, test)
