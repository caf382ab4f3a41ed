"""Routes that answer to tokens of their own, and to no client's key.

A guard is given to the gate with the application (``create_app(service, guards=…)``).  The route that it guards finds
``GUARDED`` in its scope if a token was shown, and may then do without precautions of its own.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from urllib.parse import unquote

import msgspec

from stepwell.core.config_types import Digest
from stepwell.transports.gateway.digests import digest_of

GUARDED = "stepwell.guarded"
"""In the scope: the prefix of the guard whose token was shown."""


_PLAIN = re.compile(r"(/[a-z0-9_-]+)+")
"""What most paths are: there is one way only to read them."""

MOST_ESCAPES = 4
"""How often what was escaped is escaped again; routes read a path once, and what may be before them a few times.

Without an end, an address of escaped escapes would hold up everybody, and that before a key was looked at.
"""


class Guard(msgspec.Struct, frozen=True):
    """All paths that begin with ``prefix``, such as ``/admin``, want a token with one of ``digests``.

    Without a digest nobody has one: where there are keys nobody comes in, and where there are none it is left to the
    routes whom they answer.
    """

    prefix: str
    digests: tuple[Digest, ...] = ()

    def opens(self, token: bytes) -> bool:
        """Whether the token is one of these; all of them are looked at, in constant time."""
        shown, found = digest_of(token), False
        for digest in self.digests:
            found |= hmac.compare_digest(shown, digest)
        return found


def guard_of(path: str, guards: Sequence[Guard]) -> Guard | None:
    """The guard of a path, however that is written: too many are guarded rather than too few."""
    readings = [f"{path}/"] if _PLAIN.fullmatch(path) else [f"{plain}/" for plain in plainly(path)]
    for guard in guards:
        if any(reading.startswith(f"{guard.prefix}/") for reading in readings):
            return guard
    return None


def plainly(path: str) -> tuple[str, str]:
    """A path in small letters, without escapes and doubled slashes: as it is, and with its dots followed."""
    for _ in range(MOST_ESCAPES):
        if "%" not in path:
            break
        path = unquote(path)
    said: list[str] = []
    followed: list[str] = []
    for part in re.split(r"[/\\]+", path.lower()):
        part = part.strip()
        if part in ("", "."):
            continue
        said.append(part)
        if part != "..":
            followed.append(part)
        elif followed:
            followed.pop()
    return "/" + "/".join(said), "/" + "/".join(followed)
