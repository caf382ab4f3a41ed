"""Secrets that are known by their digests only, found at a price that says nothing of them."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from hashlib import blake2b, sha256
from typing import Generic, TypeVar

T = TypeVar("T")

PREFIX = "sha256:"
_NOBODY = bytes(sha256().digest_size)
"""No key that anybody knows has this digest."""


def digest_of(secret: bytes) -> str:
    """As the configuration has it."""
    return PREFIX + sha256(secret).hexdigest()


class Digests(Generic[T]):
    """What belongs to each secret.  A look-up costs the same for one digest or for 10,000, known or unknown: places in
    the table are keyed by a number that only this process knows, and what is found there is compared in constant time.
    """

    def __init__(self, values: Iterable[tuple[str, T]]) -> None:
        self._key = secrets.token_bytes(32)
        self._values: dict[bytes, tuple[bytes, T | None]] = {}
        for digest, value in values:
            raw = bytes.fromhex(digest.removeprefix(PREFIX))
            self._values[self._place(raw)] = raw, value

    def find(self, secret: bytes) -> T | None:
        """What belongs to ``secret``; None if nobody knows it."""
        digest = sha256(secret).digest()
        known, value = self._values.get(self._place(digest), (_NOBODY, None))
        return value if hmac.compare_digest(known, digest) else None

    def _place(self, digest: bytes) -> bytes:
        return blake2b(digest, key=self._key, digest_size=16).digest()

    def __len__(self) -> int:
        return len(self._values)
