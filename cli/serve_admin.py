"""The operator's side of a server: tokens, a port of its own, and the journal that can be switched."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from stepwell.cli.journal_live import LiveJournal
from stepwell.cli.listening import bound
from stepwell.core.config import Config
from stepwell.core.config_admin import ADMIN_TOKEN
from stepwell.core.scheduler import Scheduler

if TYPE_CHECKING:
    import uvicorn


def tokens_in(environ: MutableMapping[str, str]) -> list[str]:
    """The token that the environment gives, if it does; it is taken out, as workers inherit what is left there."""
    token = environ.pop(ADMIN_TOKEN, "").strip()
    return [token] if token else []


def journal_of(folder: Path | None, config: Config, scheduler: Scheduler) -> LiveJournal | None:
    """Begun, if a ``folder`` was named; to be switched on, if the configuration names one; otherwise None."""
    if folder is None and not config.admin.journal_folder:
        return None
    journal = LiveJournal(folder or Path(config.admin.journal_folder), config, scheduler)
    if folder is not None:
        journal.start()
    return journal


def listen_admin(config: Config) -> socket.socket | None:
    """The operator's port, if there is one, taken before anything is loaded."""
    admin = config.admin
    return bound(admin.host, admin.port, "admin.port") if admin.port >= 0 else None


@asynccontextmanager
async def serving_beside(config: uvicorn.Config, listener: socket.socket | None) -> AsyncIterator[None]:
    """The application of ``config`` answers at ``listener`` inside, on the same event loop; nothing without one."""
    import uvicorn  # lazy: an extra

    if listener is None:
        yield
        return
    config.lifespan = "off"  # the engine is the other application's
    server = uvicorn.Server(config)
    server.capture_signals = contextmanager(lambda: iter([None]))  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        try:
            yield
        finally:
            server.should_exit = True


def closing(listener: socket.socket | None) -> socket.socket | nullcontext[None]:
    """As a context, whether it is there or not."""
    return listener if listener is not None else nullcontext()
