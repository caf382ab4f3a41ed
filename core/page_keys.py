"""Page keys of a prompt, for prefix reuse: equal where two prompts are equal from the start, and only there.

Key ``i`` is a hash of all tokens up to the end of full page ``i``, behind a salt.  The hash is a cryptographic one
(BLAKE2b, RFC 7693, of 64 bits), as whoever finds a page gets its content: with a salt that nobody else knows, no prompt
can be made that finds another tenant's pages, nor can a journal's keys be searched for prompts.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

KEY_BYTES = 8
_TOKEN = "I" if array("I").itemsize == 4 else "L"


def page_keys(tokens: Sequence[int], page_size: int, salt: bytes) -> list[int]:
    """One key for each full page of ``page_size`` tokens; one to two µs each."""
    data = memoryview(array(_TOKEN, tokens)).cast("B")
    width = page_size * 4
    so_far = blake2b(salt, digest_size=KEY_BYTES)
    keys = []
    for end in range(width, len(data) + 1, width):
        so_far.update(data[end - width : end])
        keys.append(int.from_bytes(so_far.copy().digest()))
    return keys


def salt_of(tenant: str, secret: bytes) -> bytes:
    """The salt of a tenant: as long as ``secret`` is one, nobody finds what another tenant's prompts left."""
    return blake2b(tenant.encode(), key=secret).digest()
