"""The keys in use, and the task that looks whether their file has changed."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.to_thread
import structlog

from stepwell.core.config import Config
from stepwell.core.errors import UserError
from stepwell.transports.gateway.key_file import keys_of, state_of
from stepwell.transports.gateway.keys import Keyring

log = structlog.get_logger("stepwell.gateway")


class Gateway:
    """``count`` is told what happens, by name, for a metric.  Raises ``UserError`` for a key file that is wrong."""

    def __init__(self, config: Config, count: Callable[[str], None] = lambda name: None) -> None:
        self.config = config
        self.count = count
        self.keyed = bool(config.keys or config.gateway.key_file)
        """There are keys, so that nobody comes in without one."""
        self._seen = state_of(config.gateway.key_file) if config.gateway.key_file else ()
        self.ring = Keyring(keys_of(config))

    async def watch(self) -> None:
        """Take over what the key file says, for as long as this runs.  What is wrong with it is said once a change, and
        the keys stay as they were."""
        path = self.config.gateway.key_file
        while path:
            await anyio.sleep(self.config.gateway.key_poll_s)
            state = await anyio.to_thread.run_sync(state_of, path)
            if state != self._seen:
                self._seen = state
                await self._reload()

    async def _reload(self) -> None:
        try:
            self.ring = Keyring(await anyio.to_thread.run_sync(keys_of, self.config))
        except UserError as error:
            self.count("keys_kept")
            log.error("the key file is wrong, the keys stay as they were", reason=str(error), keys=len(self.ring))
        else:
            self.count("keys_reloaded")
            log.warning("keys read again", keys=len(self.ring))
