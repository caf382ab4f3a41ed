"""A file on its way in: written piece by piece, seen by nobody before its end, and gone if it has none."""

from __future__ import annotations

from types import TracebackType

import anyio

from stepwell.transports.errors import RequestError
from stepwell.transports.store import files
from stepwell.transports.store.files import MOST_PIECE, FileRow
from stepwell.transports.store.store import Store


class Upload:
    """``async with Upload(store, tenant) as upload``: then ``add``, and ``end`` once."""

    def __init__(self, store: Store, tenant: str) -> None:
        self.size = 0
        self._store = store
        self._tenant = tenant
        self._number = 0
        self._pieces = 0
        self._waiting = bytearray()
        self._ended = False

    async def __aenter__(self) -> Upload:
        store, tenant = self._store, self._tenant
        self._number = await store.database.write(lambda db: files.begin(db, tenant, store.now(), store.room))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            with anyio.CancelScope(shield=True):
                await self._store.database.write_at_last(lambda db: files.discard(db, self._number))

    async def add(self, data: bytes) -> None:
        """More of it.  Raises ``RequestError`` if that is more than a file, or its tenant, may have."""
        self.size += len(data)
        most = self._store.room.file_bytes
        if self.size > most:
            raise RequestError(
                f"is larger than {self._store.limits.file_mb:g} MB", field="file", status=413, code="file_too_large"
            )
        self._waiting += data
        while len(self._waiting) >= MOST_PIECE:
            await self._write(bytes(self._waiting[:MOST_PIECE]))
            del self._waiting[:MOST_PIECE]

    async def end(self, filename: str, purpose: str, expires_s: int) -> FileRow:
        """All of it came."""
        if self._waiting:
            await self._write(bytes(self._waiting))
        store, number = self._store, self._number
        row = await store.database.write(lambda db: files.end(db, number, filename, purpose, expires_s))
        self._ended = True
        return row

    async def _write(self, piece: bytes) -> None:
        place, store = self._pieces, self._store
        self._pieces += 1
        await store.database.write(lambda db: files.append(db, self._number, place, piece, self._tenant, store.room))
