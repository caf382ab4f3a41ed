"""Page keys, for prefix reuse: equal where two token sequences are equal from the start, and only there.

Key ``i`` is a hash of a salt, key ``i`` - 1 and the tokens of page ``i``, so it stands for the page and all before it,
and whoever knows the last key of a prompt continues with the answer.  The hash is a cryptographic one (BLAKE2b, RFC
7693), as whoever finds a page gets its content.  What 64 bits of it promise, while nobody else knows the salt:

- Where 100,000 pages are known, one in 2 * 10^14 looked for is found by accident.  Nobody can aim: keys of one tenant
  look random to every other, so trying takes as many computed pages.
- The salt is in every key, not only the first, so a journal's keys tell nothing, not even of pages that follow known
  ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

KEY_BYTES = 8
SALT_BYTES = 32
"""With a key and 16 tokens it makes one block of BLAKE2b."""

_TOKEN = "I" if array("I").itemsize == 4 else "L"


def page_keys(tokens: Sequence[int], key_tokens: int, salt: bytes, after: int = 0) -> list[int]:
    """One key for each ``key_tokens`` full; about one µs each.

    ``after`` is the key of what comes before ``tokens``, 0 if nothing does.
    """
    data = memoryview(array(_TOKEN, tokens)).cast("B")
    width = key_tokens * 4
    salted = blake2b(salt, digest_size=KEY_BYTES)
    last = after.to_bytes(KEY_BYTES)
    keys = []
    for end in range(width, len(data) + 1, width):
        it = salted.copy()
        it.update(last)
        it.update(data[end - width : end])
        last = it.digest()
        keys.append(int.from_bytes(last))
    return keys


def salt_of(tenant: str, secret: bytes) -> bytes:
    """The salt of a tenant: as long as ``secret`` is one, nobody finds what another tenant's requests left."""
    return blake2b(tenant.encode(), key=secret, digest_size=SALT_BYTES).digest()
