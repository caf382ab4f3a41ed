"""Keys from a file of their own, so that they change without a restart."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stepwell.core.config import Config
from stepwell.core.config_gateway import KeyConfig, check_access
from stepwell.core.config_load import read_file
from stepwell.core.errors import UserError
from stepwell.core.schema import convert

FIELD = "gateway.key_file"


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[KeyConfig, ...] = ()


def keys_of(config: Config) -> tuple[KeyConfig, ...]:
    """All keys: those of the configuration, and those of its key file as it is now.

    Raises ``UserError`` if the file cannot be read, says something wrong, or holds no key at all, as one that is just
    being written.
    """
    path = config.gateway.key_file
    if not path:
        return config.keys
    try:
        more = convert(read_file(Path(path)), _KeyFile).keys
        if not more:
            raise UserError("there is no [[keys]] in it")
        classes = [each.name for each in config.classes]
        check_access(more, classes)
    except UserError as error:
        raise UserError(f"{path}: {error}", field=FIELD) from None
    keys = (*more, *config.keys)
    try:
        check_access(keys, classes)
    except UserError as error:
        raise UserError(f"{path} and the configuration: {error}", field=FIELD) from None
    return keys


def state_of(path: str) -> tuple[int, ...]:
    """What changes with the file; empty if it is not there."""
    try:
        found = Path(path).stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino
