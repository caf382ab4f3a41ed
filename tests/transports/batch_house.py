"""Files and batches for tests: a server with a store, the lines of a file, and what became of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from stepwell.core.events import Event, Submitted
from stepwell.core.instructions import Instruction
from stepwell.tests.transports.house import PATIENCE_S, make_service
from stepwell.transports.service import Service

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def storing(folder: Path, store: Mapping[str, Any] | None = None, **more: Any) -> Service:
    """A service whose store is in ``folder``."""
    return make_service(store={"path": str(folder / "store.sqlite"), **(store or {})}, **more)


def asking(number: int, url: str = CHAT, /, **body: Any) -> dict[str, Any]:
    """A line that asks for the echo of its own number."""
    said = {"messages": [{"role": "user", "content": f"say {number}"}]} if url == CHAT else {"prompt": f"say {number}"}
    return {"custom_id": f"c{number}", "method": "POST", "url": url, "body": {**said, **body}}


def jsonl(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def upload(client: TestClient, content: bytes, headers: Mapping[str, str] | None = None, /, **fields: str) -> Any:
    form = {"purpose": "batch", **fields}
    return client.post("/v1/files", files={"file": ("in.jsonl", content)}, data=form, headers=dict(headers or {}))


def begin(client: TestClient, lines: Sequence[Mapping[str, Any]], url: str = CHAT, **fields: Any) -> dict[str, Any]:
    """A batch of these lines."""
    file = upload(client, jsonl(lines)).json()["id"]
    body = {"input_file_id": file, "endpoint": url, "completion_window": "24h", **fields}
    answer = client.post("/v1/batches", json=body)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def ended(client: TestClient, id: str) -> dict[str, Any]:
    """The batch, once nothing more happens to it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found: dict[str, Any] = client.get(f"/v1/batches/{id}").json()
        if found["status"] in ENDED:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def rows(client: TestClient, file: str | None) -> list[dict[str, Any]]:
    """What is in an output file."""
    if file is None:
        return []
    return [json.loads(line) for line in client.get(f"/v1/files/{file}/content").text.splitlines()]


def outcome(client: TestClient, batch: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Answers and errors by ``custom_id``; each line has exactly one of both, and the counts say so."""
    good, bad = rows(client, batch["output_file_id"]), rows(client, batch["error_file_id"])
    ids = [row["custom_id"] for row in [*good, *bad]]
    assert len(set(ids)) == len(ids)
    counts = batch["request_counts"]
    assert (counts["completed"], counts["failed"], counts["total"]) == (len(good), len(bad), len(ids))
    assert len({row["id"] for row in [*good, *bad]}) == len(ids)
    return {row["custom_id"]: row for row in good}, {row["custom_id"]: row for row in bad}


def text_of(row: Mapping[str, Any]) -> str:
    """What the first choice says."""
    choice = row["response"]["body"]["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def until(condition: Callable[[], bool]) -> None:
    """It must come true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Seen:
    """What the scheduler was handed."""

    def __init__(self) -> None:
        self.submitted: list[Submitted] = []

    def __call__(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        self.submitted += [each for each in events if isinstance(each, Submitted)]
