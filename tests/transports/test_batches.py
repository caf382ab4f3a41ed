"""``/v1/batches``: every line is answered exactly once, whatever happens on the way, and to its tenant alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from stepwell.tests.transports.batch_house import (
    CHAT,
    Seen,
    asking,
    begin,
    ended,
    jsonl,
    outcome,
    rows,
    storing,
    text_of,
    until,
    upload,
)
from stepwell.tests.transports.house import client, error_of

COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TestClient]:
    with client(storing(tmp_path, wire={"tenant_header": "X-Tenant"})) as made:
        yield made


# ------------------------------------------------------------------------------------------------ answers


def test_a_batch_from_beginning_to_end(server: TestClient) -> None:
    lines = [asking(number, n=2 if number == 3 else 1) for number in range(120)]
    made = begin(
        server, lines, metadata={"what": "ever"}, output_expires_after={"anchor": "created_at", "seconds": 7200}
    )
    assert (made["object"], made["status"], made["endpoint"]) == ("batch", "validating", CHAT)
    assert made["expires_at"] - made["created_at"] == 86_400
    assert (made["output_file_id"], made["error_file_id"], made["errors"]) == (None, None, None)
    batch = ended(server, made["id"])
    assert batch["status"] == "completed"
    assert batch["metadata"] == {"what": "ever"}
    assert batch["model"] == "echo"
    assert batch["created_at"] <= batch["in_progress_at"] <= batch["finalizing_at"] <= batch["completed_at"]
    assert [batch[f"{each}_at"] for each in ("failed", "expired", "cancelling", "cancelled")] == [None] * 4
    good, bad = outcome(server, batch)
    assert not bad
    assert batch["error_file_id"] is None
    assert {id: text_of(row) for id, row in good.items()} == {f"c{number}": f"say {number}" for number in range(120)}
    assert [row["custom_id"] for row in rows(server, batch["output_file_id"])] == [f"c{n}" for n in range(120)]
    assert [each["message"]["content"] for each in good["c3"]["response"]["body"]["choices"]] == ["say 3"] * 2
    used = [row["response"]["body"]["usage"] for row in good.values()]
    assert batch["usage"]["input_tokens"] == sum(each["prompt_tokens"] for each in used)
    assert batch["usage"]["output_tokens"] == sum(each["completion_tokens"] for each in used)
    file = server.get(f"/v1/files/{batch['output_file_id']}").json()
    assert (file["purpose"], file["filename"]) == ("batch_output", f"{batch['id']}_output.jsonl")
    assert file["expires_at"] - file["created_at"] == 7200
    assert file["bytes"] == len(server.get(f"/v1/files/{file['id']}/content").content)
    assert server.get("/v1/files").json()["data"][0] == file


@pytest.mark.parametrize("url", [COMPLETIONS, RESPONSES])
def test_other_endpoints(server: TestClient, url: str) -> None:
    lines = [asking(number, url) for number in range(5)]
    if url == RESPONSES:
        lines = [{**line, "body": {"input": line["body"]["prompt"]}} for line in lines]
    batch = ended(server, begin(server, lines, url)["id"])
    good, bad = outcome(server, batch)
    assert not bad
    assert batch["usage"]["output_tokens"] == 5 * len("say 0")
    if url == COMPLETIONS:
        assert text_of(good["c4"]) == "say 4"
    else:
        assert good["c4"]["response"]["body"]["output"][0]["content"][0]["text"] == "say 4"


def test_a_line_is_judged_as_a_request_would_be(server: TestClient) -> None:
    """The same statuses, codes and fields, in the error file."""
    bodies: dict[str, dict[str, Any]] = {
        "field": {"messages": [{"role": "user", "content": "x"}], "temperature": 7},
        "model": {"messages": [{"role": "user", "content": "x"}], "model": "other"},
        "long": {"messages": [{"role": "user", "content": "x" * 5000}]},
        "empty": {},
    }
    lines = [asking(0), *({**asking(1), "custom_id": name, "body": body} for name, body in bodies.items())]
    lines += [{**asking(1), "custom_id": "stream", "body": {**asking(1)["body"], "stream": True}}]
    batch = ended(server, begin(server, lines)["id"])
    assert batch["status"] == "completed"
    good, bad = outcome(server, batch)
    assert set(good) == {"c0"}
    for name, body in bodies.items():
        answer = server.post(CHAT, json=body)
        assert bad[name]["response"]["status_code"] == answer.status_code >= 400
        assert bad[name]["response"]["body"] == answer.json()
        assert bad[name]["error"] is None
    assert bad["stream"]["response"]["body"]["error"]["param"] == "stream"


def test_lines_are_of_the_batch_class_and_their_tenants(tmp_path: Path) -> None:
    """Whatever a line says of itself."""
    seen = Seen()
    with client(storing(tmp_path, wire={"tenant_header": "X-Tenant"}, observers=[seen])) as server:
        mine = {"X-Tenant": "me"}
        line = asking(0, priority=-5, service_tier="priority")
        file = upload(server, jsonl([line]), mine).json()["id"]
        body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
        made = server.post("/v1/batches", json=body, headers=mine).json()
        until(lambda: server.get(f"/v1/batches/{made['id']}", headers=mine).json()["status"] == "completed")
        server.post(CHAT, json=asking(1)["body"], headers=mine)
    assert [(each.klass, each.tenant) for each in seen.submitted] == [("batch", "me"), ("chat", "me")]


# ------------------------------------------------------------------------------------------------ mistakes


def test_a_file_that_is_wrong_is_not_run(server: TestClient) -> None:
    wrong = [asking(0), {**asking(1), "url": "/v1/embeddings"}, {**asking(2), "custom_id": "c0"}]
    batch = ended(server, begin(server, wrong)["id"])
    assert batch["status"] == "failed"
    assert batch["errors"]["object"] == "list"
    told = [(each["code"], each["line"], each["param"]) for each in batch["errors"]["data"]]
    assert told == [("mismatched_url", 2, "url"), ("duplicate_custom_id", 3, "custom_id")]
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert (batch["output_file_id"], batch["error_file_id"]) == (None, None)
    assert batch["failed_at"] is not None
    batch = ended(server, begin(server, [])["id"])
    assert [each["code"] for each in batch["errors"]["data"]] == ["empty_file"]


def test_what_is_asked_is_checked(server: TestClient) -> None:
    file = upload(server, jsonl([asking(0)])).json()["id"]
    right = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    for change, status, param in (
        ({"input_file_id": "file-none"}, 404, "input_file_id"),
        ({"input_file_id": 3}, 400, "input_file_id"),
        ({"endpoint": "/v1/embeddings"}, 400, "endpoint"),
        ({"completion_window": "1h"}, 400, "completion_window"),
        ({"metadata": {str(n): "x" for n in range(17)}}, 400, "metadata"),
        ({"metadata": {"a": "x" * 513}}, 400, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, 400, "output_expires_after.seconds"),
    ):
        answer = server.post("/v1/batches", json={**right, **change})
        assert answer.status_code == status, change
        assert str(answer.json()["error"]["param"]).startswith(param)
    assert server.get("/v1/batches").json()["data"] == []
    done = ended(server, server.post("/v1/batches", json=right).json()["id"])
    output = {**right, "input_file_id": done["output_file_id"]}
    assert error_of(server.post("/v1/batches", json=output))[::2] == (400, "input_file_id")


def test_batches_are_their_tenants_own(server: TestClient) -> None:
    made = begin(server, [asking(0)])
    other = {"X-Tenant": "you"}
    for method, path in (("GET", ""), ("POST", "/cancel")):
        answer = server.request(method, f"/v1/batches/{made['id']}{path}", headers=other)
        assert error_of(answer) == (404, "batch_not_found", None)
    assert server.get("/v1/batches", headers=other).json()["data"] == []
    batch = ended(server, made["id"])
    assert error_of(server.get(f"/v1/files/{batch['output_file_id']}/content", headers=other))[0] == 404


def test_lists_have_pages(server: TestClient) -> None:
    ids = [begin(server, [asking(0)])["id"] for _ in range(5)]
    page = server.get("/v1/batches", params={"limit": 2}).json()
    assert [each["id"] for each in page["data"]] == ids[:-3:-1]
    assert page["has_more"]
    page = server.get("/v1/batches", params={"after": page["last_id"]}).json()
    assert [each["id"] for each in page["data"]] == ids[2::-1]
    assert not page["has_more"]
    assert error_of(server.get("/v1/batches", params={"limit": 101}))[::2] == (400, "limit")


def test_lines_leave_no_circles(tmp_path: Path) -> None:
    """What only a search for cycles would free stays for long in a server that seldom searches."""
    service, count = storing(tmp_path), 200
    with client(service) as http:
        ended(http, begin(http, [asking(number) for number in range(10)])["id"])
        lines = [asking(number) for number in range(count)]
        gc.collect()
        gc.disable()
        try:
            begin(http, lines)
            until(lambda: service.metrics.ends["stop"] == 10 + count)
            assert gc.collect() < 5 * count
        finally:
            gc.enable()
