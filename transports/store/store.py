"""What endpoints and batches share of the store: the open file, its bounds, and the time of the calendar."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stepwell.core.config_store import StoreConfig
from stepwell.core.errors import CapacityError
from stepwell.transports.errors import RequestError
from stepwell.transports.store import batches, files, responses
from stepwell.transports.store.database import Database, open_database

SCHEMAS = (files.SCHEMA, batches.SCHEMA, responses.SCHEMA)
"""Of all who keep something; a new one is added at the end."""

DAY_S = 86_400


class Store:
    """``now``: seconds since 1970, which is what clients are told and what survives a restart."""

    def __init__(self, database: Database, limits: StoreConfig, now: Callable[[], float] = time.time) -> None:
        self.database = database
        self.limits = limits
        self.file_s = int(limits.file_days * DAY_S)
        """Age at which a file goes that has no other."""
        self.room = files.Room(
            tenant_bytes=limits.tenant_mib << 20,
            tenant_files=limits.tenant_files,
            file_bytes=int(limits.file_mb * 1_000_000),
        )
        self.file_bytes = 0
        """Of all files, as of the last look."""
        self._now = now
        self._uploading = 0

    def now(self) -> int:
        return int(self._now())

    @contextmanager
    def uploading(self) -> Iterator[None]:
        """An upload takes place inside; raises ``CapacityError`` if too many do."""
        if self._uploading >= self.limits.uploads:
            raise CapacityError(f"{self._uploading} files are being uploaded", code="too_many_uploads")
        self._uploading += 1
        try:
            yield
        finally:
            self._uploading -= 1

    def close(self) -> None:
        """What was handed in is written first.  Harmless the second time."""
        self.database.close()


def open_store(limits: StoreConfig) -> Store | None:
    """The store that the configuration names, if it names one.  Raises ``UserError`` if it cannot be used."""
    if not limits.path:
        return None
    return Store(open_database(limits.path, SCHEMAS, limits.total_mib), limits)


def existing(store: Store | None) -> Store:
    """Raises ``RequestError`` if there is none."""
    if store is None:
        raise RequestError(
            "nothing is kept here: the server has no store.path", status=404, code="store_not_configured"
        )
    return store
