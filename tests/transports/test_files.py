"""``/v1/files``: what is uploaded is given back, to its tenant and to nobody else, within bounds."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from stepwell.tests.transports.batch_house import storing, upload
from stepwell.tests.transports.house import client, error_of, make_service, running
from stepwell.transports.errors import RequestError
from stepwell.transports.http.multipart import MOST_FIELD, MOST_PARTS, Field, FileBegins, FileEnds, Form
from stepwell.transports.store import files
from stepwell.transports.store.files import MOST_PIECE


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TestClient]:
    with client(storing(tmp_path, wire={"tenant_header": "X-Tenant"})) as made:
        yield made


# ------------------------------------------------------------------------------------------------ forms


@given(
    st.lists(st.tuples(st.sampled_from(["a", "file", "ü"]), st.binary(max_size=60), st.booleans()), max_size=6),
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
)
@settings(deadline=None)
def test_a_form_is_the_same_however_it_comes(parts: list[tuple[str, bytes, bool]], sizes: list[int]) -> None:
    parts = [(name, data.replace(b"--edge", b""), file) for name, data, file in parts]
    body = b""
    for name, data, is_file in parts:
        more = '; filename="f.txt"' if is_file else ""
        value = data if is_file else data.hex().encode()
        body += f'--edge\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"
    body += b"--edge--\r\n"
    form = Form("multipart/form-data; boundary=edge")
    found: list[Any] = []
    place, turn = 0, 0
    while place < len(body):
        size = sizes[turn % len(sizes)]
        for item in form.feed(body[place : place + size]):
            if isinstance(item, bytes) and found and isinstance(found[-1], bytes):
                found[-1] += item
            else:
                found.append(item)
        place, turn = place + size, turn + 1
    expected: list[Any] = []
    for name, data, is_file in parts:
        expected += [FileBegins(name, "f.txt"), *([data] if data else []), FileEnds()] if is_file else []
        expected += [] if is_file else [Field(name, data.hex())]
    assert found == expected
    if parts:
        form.end()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b""),
        ("multipart/form-data; boundary=" + "x" * 300, b""),
        ("multipart/form-data; boundary=e", b"nonsense"),
        ("multipart/form-data; boundary=e", b"--e\r\n" + b"A: b\r\n" * 100),
        ("multipart/form-data; boundary=e", b"--e\r\nA: " + b"b" * 100_000),
        ("multipart/form-data; boundary=e", b'--e\r\nContent-Disposition: form-data; name="a"\r\n\r\nhalf'),
        ("multipart/form-data; boundary=e", b'--e\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + b"x" * 5000),
        (
            "multipart/form-data; boundary=e",
            b'--e\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * (MOST_PARTS + 1) + b"--e--\r\n",
        ),
    ],
)
def test_what_is_no_form_is_refused(server: TestClient, kind: str, body: bytes) -> None:
    answer = server.post("/v1/files", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] in ("invalid_value", "invalid_form")
    assert MOST_FIELD < 5000


# ------------------------------------------------------------------------------------------------ whole lives


@pytest.mark.parametrize("size", [0, 1, MOST_PIECE - 1, MOST_PIECE, MOST_PIECE + 1, 3 * MOST_PIECE + 17])
def test_what_was_uploaded_is_given_back(server: TestClient, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    made = upload(server, content).json()
    assert (made["object"], made["bytes"], made["purpose"]) == ("file", size, "batch")
    assert (made["filename"], made["status"]) == ("in.jsonl", "processed")
    assert made["expires_at"] - made["created_at"] == 30 * 86_400
    assert server.get(f"/v1/files/{made['id']}").json() == made
    answer = server.get(f"/v1/files/{made['id']}/content")
    assert answer.content == content
    assert answer.headers["content-length"] == str(size)
    assert answer.headers["content-disposition"] == 'attachment; filename="in.jsonl"'
    assert server.delete(f"/v1/files/{made['id']}").json() == {"id": made["id"], "object": "file", "deleted": True}
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        gone = server.request(method, f"/v1/files/{made['id']}{path}")
        assert error_of(gone) == (404, "file_not_found", None)


def test_lists_have_pages(server: TestClient) -> None:
    ids = [upload(server, b"x").json()["id"] for _ in range(7)]

    def listed(**asked: Any) -> tuple[list[str], bool]:
        page = server.get("/v1/files", params=asked).json()
        found = [each["id"] for each in page["data"]]
        assert (page["first_id"], page["last_id"]) == ((found[0], found[-1]) if found else (None, None))
        return found, page["has_more"]

    assert listed() == (ids[::-1], False)
    assert listed(order="asc", purpose="batch") == (ids, False)
    assert listed(purpose="batch_output") == ([], False)
    for order, whole in (("asc", ids), ("desc", ids[::-1])):
        found: list[str] = []
        more, after = True, ""
        while more:
            page, more = listed(order=order, limit=3, after=after)
            found += page
            after = page[-1]
        assert found == whole
    assert listed(after="file-of-nobody") == ([], False)
    for asked in ({"limit": 0}, {"limit": 10_001}, {"limit": "x"}, {"order": "sideways"}):
        assert error_of(server.get("/v1/files", params=asked))[::2] == (400, next(iter(asked)))


def test_files_are_their_tenants_own(server: TestClient) -> None:
    """AU: another tenant is told what it would be told of a file that never was."""
    mine, other = {"X-Tenant": "me"}, {"X-Tenant": "you"}
    id = upload(server, b"secret", mine).json()["id"]
    nobody = server.get("/v1/files/file-none", headers=other).json()["error"]
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        answer = server.request(method, f"/v1/files/{id}{path}", headers=other)
        assert answer.status_code == 404
        assert answer.json()["error"] == {**nobody, "message": nobody["message"].replace("file-none", id)}
    assert server.get("/v1/files", headers=other).json()["data"] == []
    assert server.get("/v1/files", params={"after": id}, headers=other).json()["data"] == []
    body = {"input_file_id": id, "endpoint": "/v1/completions", "completion_window": "24h"}
    answer = server.post("/v1/batches", json=body, headers=other)
    assert error_of(answer) == (404, "file_not_found", "input_file_id")
    assert server.get(f"/v1/files/{id}/content", headers=mine).text == "secret"


# ------------------------------------------------------------------------------------------------ bounds


def test_fields_are_checked(server: TestClient) -> None:
    def refused(files: Any = (("file", ("f", b"x")),), **fields: str) -> tuple[int, str | None]:
        answer = server.post("/v1/files", files=files or None, data=fields)
        return answer.status_code, answer.json()["error"]["param"]

    seconds, anchor = "expires_after[seconds]", "expires_after[anchor]"
    assert refused() == (400, "purpose")
    assert refused(purpose="fine-tune") == (400, "purpose")
    assert refused((("other", ("f", b"x")),), purpose="batch") == (400, "other")
    assert refused((("file", ("f", b"x")), ("file", ("g", b"y"))), purpose="batch") == (400, "file")
    assert refused(purpose="batch", **{seconds: "3600"}) == (400, anchor)
    for wrong in ("3599", "2592001", "x", "-1", "9" * 30):
        assert refused(purpose="batch", **{seconds: wrong, anchor: "created_at"}) == (400, seconds)
    made = upload(server, b"x", **{seconds: "3600", anchor: "created_at"}).json()
    assert made["expires_at"] == made["created_at"] + 3600
    assert [each["id"] for each in server.get("/v1/files").json()["data"]] == [made["id"]]
    kept = server.app.state.service.store.database.path  # type: ignore[attr-defined]
    with closing(sqlite3.connect(kept)) as db:
        assert db.execute("SELECT count(*) FROM files").fetchone() == (1,), "what was refused left something"
        assert db.execute("SELECT count(*) FROM pieces").fetchone() == (1,)


def test_a_large_file_is_refused_before_it_is_kept(tmp_path: Path) -> None:
    with client(storing(tmp_path, {"file_mb": 0.5})) as server:
        assert upload(server, bytes(500_000)).status_code == 200
        assert error_of(upload(server, bytes(500_001)))[:2] == (413, "file_too_large")
        assert error_of(upload(server, bytes(5_000_000)))[:2] == (413, "file_too_large")
        assert len(server.get("/v1/files").json()["data"]) == 1


def test_a_tenant_has_so_much_and_no_more(tmp_path: Path) -> None:
    store = {"tenant_mib": 1, "tenant_files": 3}
    with client(storing(tmp_path, store, wire={"tenant_header": "X-Tenant"})) as server:
        first = upload(server, bytes(700_000)).json()["id"]
        assert error_of(upload(server, bytes(700_000)))[:2] == (413, "storage_quota_exceeded")
        assert upload(server, bytes(700_000), {"X-Tenant": "other"}).status_code == 200
        assert server.delete(f"/v1/files/{first}").status_code == 200
        assert [upload(server, b"x").status_code for _ in range(4)] == [200, 200, 200, 413]


def test_a_full_store_takes_nothing_and_loses_nothing(tmp_path: Path) -> None:
    with client(storing(tmp_path, {"total_mib": 4})) as server:
        kept = []
        for number in range(20):
            answer = upload(server, bytes([number]) * 400_000)
            if answer.status_code != 200:
                break
            kept.append(answer.json()["id"])
        assert error_of(answer)[1] == "store_full"
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert len(kept) >= 5
        for number, id in enumerate(kept):
            assert server.get(f"/v1/files/{id}/content").content == bytes([number]) * 400_000
        assert server.delete(f"/v1/files/{kept.pop(0)}").status_code == 200
        assert upload(server, bytes(400_000)).status_code == 200


def test_uploads_at_once_are_bounded(tmp_path: Path) -> None:
    service = storing(tmp_path, {"uploads": 1})
    assert service.store is not None
    with client(service) as server:
        with service.store.uploading():
            answer = upload(server, b"x")
            assert error_of(answer)[:2] == (429, "too_many_uploads")
        assert upload(server, b"x").status_code == 200


def test_without_a_store_it_is_said(tmp_path: Path) -> None:
    with client(make_service()) as server:
        for answer in (upload(server, b"x"), server.get("/v1/files"), server.get("/v1/batches/x")):
            assert error_of(answer)[:2] == (404, "store_not_configured")


# ------------------------------------------------------------------------------------------------ unfinished, and old


def test_an_upload_whose_client_leaves_is_gone(tmp_path: Path) -> None:
    service = storing(tmp_path)
    assert service.store is not None
    database = service.store.database
    head = b'--e\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    messages = [
        {"type": "http.request", "body": head + bytes(2 * MOST_PIECE), "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def main() -> None:
        sent: list[Any] = []
        async with running(service) as app:

            async def receive() -> Any:
                if len(messages) == 1:
                    (count,) = await database.read(lambda db: db.execute("SELECT count(*) FROM pieces").fetchone())
                    assert count == 2, "it is not written as it comes"
                return messages.pop(0)

            async def send(message: Any) -> None:
                sent.append(message)

            headers = [(b"content-type", b"multipart/form-data; boundary=e")]
            scope = {"type": "http", "method": "POST", "path": "/v1/files", "headers": headers, "query_string": b""}
            await app({**scope, "http_version": "1.1", "root_path": "", "scheme": "http"}, receive, send)
            (left,) = await database.read(lambda db: db.execute("SELECT count(*) FROM pieces").fetchone())
            assert left == 0
            assert await database.read(lambda db: files.used(db, "default")) == (0, 0)
        assert sent[0]["status"] == 499

    anyio.run(main)


def test_what_a_process_left_half_uploaded_is_gone_after_the_next_start(tmp_path: Path) -> None:
    with client(storing(tmp_path)) as server:
        kept = upload(server, b"x").json()["id"]
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as db:
        db.execute("INSERT INTO files VALUES (77, 'file-half', 'default', '', '', 3, 0, NULL, NULL, 0, 0)")
        db.execute("INSERT INTO pieces VALUES (77, 0, 'abc')")
        db.commit()
    with client(storing(tmp_path)) as server:
        assert [each["id"] for each in server.get("/v1/files").json()["data"]] == [kept]
        assert error_of(server.get("/v1/files/file-half"))[0] == 404
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM pieces").fetchone() == (1,)


def test_names_are_harmless() -> None:
    form = Form("multipart/form-data; boundary=e")
    head = '--e\r\nContent-Disposition: form-data; name="file"; filename="a\x07b%s"\r\n\r\n' % ("é" * 400)
    (begins,) = form.feed(head.encode())
    assert isinstance(begins, FileBegins)
    assert begins.filename == "ab" + "é" * 253
    with pytest.raises(RequestError, match="has no end"):
        form.end()


def test_a_file_expires_so_long_after_it_began_to_come() -> None:
    """Whatever the time is when all of it is there."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        for script in files.SCHEMA.scripts:
            db.executescript(script)
        number = files.begin(db, "t", 1_000, files.Room(tenant_bytes=1, tenant_files=1, file_bytes=1))
        assert files.end(db, number, "f", "batch", 60).expires_at == 1_060
