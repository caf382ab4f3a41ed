"""The keys that there are: found by what is shown, or by name.  Made anew whenever one of them changes."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core.config_gateway import KeyConfig
from stepwell.transports.errors import RequestError
from stepwell.transports.gateway.digests import Digests


class Keyring:
    """``keys`` have been checked (``check_access``)."""

    def __init__(self, keys: Sequence[KeyConfig]) -> None:
        self._shown = Digests((each.digest, each) for each in keys)
        self._named = {each.name: each for each in keys}
        self._expires_ns = {each.name: each.expires_ns for each in keys if each.expires}

    def __len__(self) -> int:
        return len(self._named)

    def shown(self, key: bytes, now_ns: int) -> KeyConfig | None:
        """What it opens; None if there is no such key, or not any more.  ``now_ns`` since 1970."""
        return self._alive(self._shown.find(key), now_ns)

    def named(self, name: str, now_ns: int) -> KeyConfig | None:
        """The key of that name, as it is now; None if it is not any more, as while a socket is open for hours."""
        return self._alive(self._named.get(name), now_ns)

    def _alive(self, key: KeyConfig | None, now_ns: int) -> KeyConfig | None:
        if key is None or now_ns >= self._expires_ns.get(key.name, now_ns + 1):
            return None
        return key


def unauthorised(message: str) -> RequestError:
    """Nobody who is known.  The same for a key that is wrong and one that was: which, only the log of whoever made it
    could tell."""
    return RequestError(message, status=401, code="invalid_api_key")
