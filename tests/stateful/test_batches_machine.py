"""The life of files and batches in the store, against a model: counts, bytes, contents and who sees what always agree.

Every rule is one transaction, and now and then the process is killed: what was not committed is gone, all else stays.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

pytest.importorskip("starlette", reason="needs the extra `serve`")

from stepwell.core.errors import CapacityError
from stepwell.transports.errors import RequestError
from stepwell.transports.store import batches, files
from stepwell.transports.store.batches import NewBatch, Result, Usage
from stepwell.transports.store.files import Room

TENANTS = ("one", "two")
MOST_BATCHES, MOST_FILES, DAY = 3, 8, 86_400
ROOM = Room(tenant_bytes=1 << 30, tenant_files=MOST_FILES, file_bytes=1 << 20)
WINDOW = DAY


@dataclass
class ModelFile:
    tenant: str
    purpose: str
    content: bytes
    expires_at: int


@dataclass
class ModelBatch:
    tenant: str
    id: str
    input: str
    created_at: int
    status: str = "validating"
    total: int = 0
    results: dict[int, tuple[bool, bytes]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)

    @property
    def unfinished(self) -> bool:
        return self.status in batches.UNFINISHED

    def content(self, failed: bool) -> bytes:
        return b"".join(data for _, (bad, data) in sorted(self.results.items()) if bad == failed)


class Batches(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        for schema in (files.SCHEMA, batches.SCHEMA):
            for script in schema.scripts:
                self.db.executescript(script)
        self.now = 1_000_000
        self.files: dict[str, ModelFile] = {}
        self.batches: dict[int, ModelBatch] = {}

    def teardown(self) -> None:
        self.db.close()

    def unfinished(self) -> list[int]:
        return [number for number, each in self.batches.items() if each.unfinished]

    # --------------------------------------------------------------------------------------- clients

    @rule(tenant=st.sampled_from(TENANTS), content=st.binary(max_size=9), half=st.booleans(), days=st.integers(1, 40))
    def upload(self, tenant: str, content: bytes, half: bool, days: int) -> None:
        room = self.room_of(tenant)
        if room <= 0:
            with pytest.raises(RequestError, match="files"):
                files.begin(self.db, tenant, self.now, ROOM)
            return
        number = files.begin(self.db, tenant, self.now, ROOM)
        for place, at in enumerate(range(0, len(content), 4)):
            files.append(self.db, number, place, content[at : at + 4], tenant, ROOM)
        if half:
            assert files.remove_unfinished(self.db) == 1
            return
        row = files.end(self.db, number, "f", "batch", days * DAY)
        assert row.object["bytes"] == len(content)
        self.files[row.id] = ModelFile(tenant, "batch", content, self.now + days * DAY)

    def room_of(self, tenant: str) -> int:
        """Hidden files of running batches count."""
        hidden = sum(2 for each in self.batches.values() if each.tenant == tenant and each.unfinished and each.files)
        return MOST_FILES - hidden - sum(each.tenant == tenant for each in self.files.values())

    @precondition(lambda self: self.files)
    @rule(data=st.data(), tenant=st.sampled_from(TENANTS))
    def create(self, data: Any, tenant: str) -> None:
        id = data.draw(st.sampled_from(list(self.files)))
        asked = NewBatch("/v1/chat/completions", id, "24h", WINDOW)
        file = self.files[id]
        busy = sum(each.unfinished and each.tenant == tenant for each in self.batches.values())
        if busy >= MOST_BATCHES:
            with pytest.raises(CapacityError):
                batches.create(self.db, tenant, asked, self.now, MOST_BATCHES)
        elif file.tenant != tenant or file.purpose != "batch":
            with pytest.raises(RequestError) as told:
                batches.create(self.db, tenant, asked, self.now, MOST_BATCHES)
            assert told.value.status == (404 if file.tenant != tenant else 400)
        else:
            row = batches.create(self.db, tenant, asked, self.now, MOST_BATCHES)
            assert row.number not in self.batches
            self.batches[row.number] = ModelBatch(tenant, row.id, id, self.now)

    @precondition(lambda self: self.files)
    @rule(data=st.data(), tenant=st.sampled_from(TENANTS))
    def remove(self, data: Any, tenant: str) -> None:
        id = data.draw(st.sampled_from(list(self.files)))
        read = any(each.unfinished and each.input == id for each in self.batches.values())
        if self.files[id].tenant != tenant or read:
            with pytest.raises(RequestError) as told:
                batches.remove_file(self.db, tenant, id)
            assert told.value.status == (404 if self.files[id].tenant != tenant else 409)
        else:
            batches.remove_file(self.db, tenant, id)
            del self.files[id]

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), tenant=st.sampled_from(TENANTS))
    def cancel(self, data: Any, tenant: str) -> None:
        model = self.batches[data.draw(st.sampled_from(list(self.batches)))]
        if model.tenant != tenant or not model.unfinished:
            with pytest.raises(RequestError) as told:
                batches.cancel(self.db, tenant, model.id, self.now)
            assert told.value.status == (404 if model.tenant != tenant else 409)
            return
        if model.status != "finalizing":
            model.status = "cancelling"
        assert batches.cancel(self.db, tenant, model.id, self.now).status == model.status

    # --------------------------------------------------------------------------------------- the runner

    @precondition(lambda self: self.unfinished())
    @rule(data=st.data(), total=st.integers(1, 5), wrong=st.booleans())
    def check(self, data: Any, total: int, wrong: bool) -> None:
        number = data.draw(st.sampled_from(self.unfinished()))
        model = self.batches[number]
        if model.files or model.status not in ("validating", "cancelling"):
            return
        if wrong and model.status == "validating":
            batches.fail(self.db, number, [{"code": "x", "line": 1}], self.now)
            model.status = "failed"
            return
        row = batches.start(self.db, number, total, "m", self.now)
        model.total = total
        model.status = "in_progress" if model.status == "validating" else model.status
        assert row.output_file_id is not None
        assert row.error_file_id is not None
        model.files = [row.output_file_id, row.error_file_id]

    @precondition(lambda self: self.unfinished())
    @rule(data=st.data(), killed=st.booleans())
    def record(self, data: Any, killed: bool) -> None:
        number = data.draw(st.sampled_from(self.unfinished()))
        model = self.batches[number]
        if not model.files:
            return
        lines = data.draw(st.lists(st.tuples(st.integers(0, model.total - 1), st.booleans()), max_size=4))
        results = [
            Result(line, failed, b"%d %d %d\n" % (number, line, place), Usage(input=2, output=1))
            for place, (line, failed) in enumerate(lines)
        ]
        self.db.execute("BEGIN")
        batches.record(self.db, number, results)
        self.db.execute("ROLLBACK" if killed else "COMMIT")
        if not killed:
            for each in sorted(results, key=lambda each: each.failed):
                model.results.setdefault(each.line, (each.failed, each.data))

    @precondition(lambda self: self.unfinished())
    @rule(data=st.data(), how=st.sampled_from(["completed", "expired"]), killed=st.booleans())
    def finish(self, data: Any, how: str, killed: bool) -> None:
        number = data.draw(st.sampled_from(self.unfinished()))
        model = self.batches[number]
        if how == "completed" and len(model.results) < model.total:
            return
        status = "cancelled" if model.status == "cancelling" else how
        if how == "completed":
            row = batches.finalize(self.db, number, self.now)
            model.status = "finalizing" if model.status == "in_progress" else model.status
            assert row.status == model.status
            if model.status not in ("finalizing", "cancelling"):
                return
        self.db.execute("BEGIN")
        batches.finish(self.db, number, how, self.now, 30 * DAY)
        self.db.execute("ROLLBACK" if killed else "COMMIT")
        if killed:
            return
        model.status = status
        for failed, id in enumerate(model.files):
            if content := model.content(bool(failed)):
                self.files[id] = ModelFile(model.tenant, "batch_output", content, self.now + 30 * DAY)

    @rule(days=st.integers(0, 20))
    def grow_older(self, days: int) -> None:
        self.now += days * DAY
        while batches.sweep(self.db, self.now, 30 * DAY, most=2):
            pass
        inputs = {each.input for each in self.batches.values() if each.unfinished}
        self.files = {id: each for id, each in self.files.items() if each.expires_at > self.now or id in inputs}
        for number, each in list(self.batches.items()):
            old = each.created_at + WINDOW <= self.now - 30 * DAY
            if old and not each.unfinished and not any(id in self.files for id in each.files):
                del self.batches[number]

    # --------------------------------------------------------------------------------------- laws

    @invariant()
    def everybody_sees_their_own_and_all_of_it(self) -> None:
        for tenant in TENANTS:
            rows, more = files.listed(self.db, tenant, purpose="", after="", limit=100, newest_first=False)
            assert not more
            own = {id: each for id, each in self.files.items() if each.tenant == tenant}
            assert {row.id: (row.bytes, row.purpose) for row in rows} == {
                id: (len(each.content), each.purpose) for id, each in own.items()
            }
            for row in rows:
                assert self.content(row) == own[row.id].content
            hidden = sum(
                len(each.content(failed))
                for each in self.batches.values()
                if each.tenant == tenant and each.unfinished
                for failed in (False, True)
            )
            assert files.used(self.db, tenant)[1] == hidden + sum(len(each.content) for each in own.values())

    def content(self, row: files.FileRow) -> bytes:
        found, place = b"", 0
        while place >= 0:
            data, place = files.piece(row, place)(self.db)
            found += data
        return found

    @invariant()
    def batches_say_what_happened(self) -> None:
        for number, model in self.batches.items():
            row = batches.find(self.db, model.tenant, model.id)
            told = row.object
            assert told["status"] == model.status
            failed = sum(bad for bad, _ in model.results.values())
            assert told["request_counts"] == {
                "total": model.total,
                "completed": len(model.results) - failed,
                "failed": failed,
            }
            assert told["usage"]["total_tokens"] == 3 * len(model.results)
            ends = [told[f"{each}_at"] for each in ("completed", "failed", "expired", "cancelled")]
            assert sum(each is not None for each in ends) == (not model.unfinished)
            shown = [told["output_file_id"], told["error_file_id"]]
            for id, bad in zip(shown, (False, True), strict=True):
                assert (id is not None) == (not model.unfinished and bool(model.content(bad)))
            if model.unfinished:
                assert sorted(batches.recorded(self.db, number)) == sorted(model.results)
        assert [row.number for row in batches.unfinished(self.db)] == self.unfinished()


TestBatches = Batches.TestCase
TestBatches.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
