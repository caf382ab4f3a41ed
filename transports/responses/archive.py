"""Responses that outlive the process, where ``store.path`` names a file.

Nobody waits for what is written here, but who asks for a response in the background: that one must be known before its
name is told.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import msgspec
import structlog

from stepwell.core.config_responses import ResponsesConfig
from stepwell.core.errors import CapacityError
from stepwell.transports.responses.answer import Json
from stepwell.transports.store import responses
from stepwell.transports.store.responses import ResponseRow
from stepwell.transports.store.store import Store
from stepwell.transports.store.worker import Work

log = structlog.get_logger("stepwell.responses")

CUT = {"code": "server_error", "message": "the server ended before the response did"}
MOST_UNWRITTEN = 64 << 20
"""Bytes that wait to be written: with a disk that hangs, memory must not fill with what nobody can write."""
_encode = msgspec.json.encode


class Kept(msgspec.Struct, frozen=True):
    """A response that is over, without its events."""

    id: str
    tenant: str
    previous: str | None
    told: Json
    input: bytes

    over = True

    def response(self) -> Json:
        """The response object."""
        return self.told


class Archive:
    """``store`` belongs to the service, which closes it."""

    def __init__(self, store: Store, limits: ResponsesConfig) -> None:
        self._store = store
        self._keep_s = int(limits.keep_hours * 3600) or 1
        self._most = int(limits.stored_mib * (1 << 20))
        self._boot = uuid.uuid4().hex
        self._writing: dict[str, Kept] = {}
        """Handed in and not on the disk yet."""
        self._unwritten = 0
        """Bytes of those."""

    async def note(self, kept: Kept) -> None:
        """It is on its way, and is to be found as failed should the process end before it does."""
        row = self._row(kept, self._boot)
        try:
            await self._store.database.write(lambda db: responses.put(db, row, self._most))
        except CapacityError as error:
            _complain(error)

    def keep(self, kept: Kept) -> None:
        """It is over."""
        row = self._row(kept, None)
        size = len(row.response) + len(row.input)
        if self._unwritten + size > MOST_UNWRITTEN:
            _complain(CapacityError("the store does not keep up with what is to be written", code="store_busy"))
            return
        self._writing[kept.id] = kept
        self._unwritten += size

        def written() -> None:
            self._unwritten -= size
            if self._writing.get(kept.id) is kept:
                del self._writing[kept.id]

        self._post(lambda db: responses.put(db, row, self._most), written)

    async def find(self, tenant: str, id: str) -> Kept | None:
        """None if there is none of that tenant, or no more."""
        waiting = self._writing.get(id)
        if waiting is not None:
            return waiting if waiting.tenant == tenant else None
        now = self._store.now()
        row = await self._store.database.read(lambda db: responses.find(db, tenant, id, now))
        if row is None:
            return None
        told = msgspec.json.decode(row.response)
        if row.boot is not None:
            told |= {"status": "failed", "error": CUT}
        return Kept(row.id, row.tenant, row.previous, told, row.input)

    def touch(self, id: str) -> None:
        """Something goes on from it."""
        expires_at = self._expires_at()
        self._post(lambda db: responses.touch(db, id, expires_at))

    async def remove(self, id: str) -> None:
        """It is gone when this returns."""
        self._writing.pop(id, None)
        await self._store.database.write_at_last(lambda db: responses.remove(db, id))

    def sweep(self) -> None:
        """Those that are too old go."""
        now = self._store.now()
        self._post(lambda db: responses.sweep(db, now))

    def _row(self, kept: Kept, boot: str | None) -> ResponseRow:
        told = _encode(kept.told)
        return ResponseRow(kept.id, kept.tenant, kept.previous, boot, self._expires_at(), told, kept.input)

    def _expires_at(self) -> int:
        return self._store.now() + self._keep_s

    def _post(self, work: Work[None], done: Any = lambda: None) -> None:
        def ended(future: asyncio.Future[Any]) -> None:
            done()
            error = None if future.cancelled() else future.exception()
            if error is not None:
                _complain(error)

        try:
            self._store.database.post(work).add_done_callback(ended)
        except CapacityError as error:  # the server stops
            done()
            _complain(error)


def _complain(error: BaseException) -> None:
    log.warning("a response is kept in memory only", reason=str(error))
