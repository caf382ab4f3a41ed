"""The settings of a server as its operator may see them: whole, with their origins, and without secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from stepwell.core.config import Config

MASK = "(secret)"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DEFAULTS = ("", "default")


def settings_of(config: Config, origin: Callable[[str], str]) -> dict[str, object]:
    """``origins``: by path, of the values that are not defaults."""
    tree: dict[str, Any] = masked(msgspec.to_builtins(config))
    origins = {path: source for path in _paths(tree, "") if (source := origin(path)) not in _DEFAULTS}
    return {"digest": config.digest, "config": tree, "origins": origins}


def masked(value: Any) -> Any:
    """Digests of keys, and names and passwords in addresses, are not shown."""
    if isinstance(value, Mapping):
        return {key: masked(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [masked(each) for each in value]
    if isinstance(value, str):
        if _DIGEST.fullmatch(value):
            return MASK
        if "://" in value and "@" in value:
            return value.replace(urlsplit(value).netloc.rpartition("@")[0], MASK)
    return value


def _paths(value: object, at: str) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _paths(each, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        for index, each in enumerate(value):
            yield from _paths(each, f"{at}[{index}]")
    else:
        yield at
