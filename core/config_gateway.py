"""Who may use a server, and how much: tenants, keys, and the limits in front of the scheduler."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec

from stepwell.core.config_types import Count, Digest, Positive, Seconds, TenantName, Word
from stepwell.core.errors import UserError
from stepwell.core.schema import SourceOf, unknown
from stepwell.core.types import NS_PER_S

Limit = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] | None
"""None: as ``[gateway]`` says for everybody; 0: none."""


class TenantConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tenant that differs from others."""

    name: TenantName
    """As keys, headers and metrics call it."""
    weight: Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)] = 1.0
    """Of two tenants that both wait, one of twice the weight is given twice as much, by policies that share out."""
    requests_per_minute: Limit = None
    """In place of that of ``[gateway]``."""
    tokens_per_minute: Limit = None
    """In place of that of ``[gateway]``."""
    concurrent: Limit = None
    """In place of that of ``[gateway]``."""


class KeyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key that clients show, which is known here by its digest only, and what it opens."""

    name: Word
    """What logs and reports call it."""
    digest: Digest
    """Of the key itself, which is written nowhere."""
    tenant: TenantName = "default"
    """Whose requests those with this key are."""
    models: tuple[str, ...] = ()
    """Those that it may ask; empty: all."""
    classes: tuple[Word, ...] = ()
    """Those that its requests may be of; empty: all.  Who says nothing is of the first if the default is not there."""
    origins: tuple[str, ...] = ()
    """Of the pages that ``server.origins`` lets in, those that may use it; empty: all."""
    expires: str = ""
    """A day or a time in ISO 8601, UTC unless it says otherwise, from which on it opens nothing; empty: none."""
    trusted: bool = False
    """It is a gateway's, which is believed when it names tenants (``wire.tenant_header``) and deadlines."""
    metrics: bool = False
    """It may read ``/metrics``."""

    @property
    def expires_ns(self) -> int:
        """Nanoseconds since 1970; 0: never.  Raises ``ValueError`` if ``expires`` is no time."""
        if not self.expires:
            return 0
        moment = datetime.fromisoformat(self.expires)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return int(moment.timestamp()) * NS_PER_S


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The door.  Without ``[[keys]]`` and ``key_file`` it is open, and everybody is the tenant ``default``."""

    key_file: str = ""
    """A TOML file of more ``[[keys]]``, read again whenever it changes; empty: none."""
    key_poll_s: Seconds = 5.0
    """How often it is looked at."""
    metrics: Literal["key", "open"] = "key"
    """Who may read ``/metrics`` where there are keys: those that say so, or everybody."""
    requests_per_minute: Count = 0
    """Of each tenant, so many at once and then at this pace; 0: as many as come."""
    tokens_per_minute: Count = 0
    """Of prompts and answers, of each tenant, in the same way; 0: no limit."""
    concurrent: Count = 0
    """Answers in progress or in line, of each tenant, ``n`` counting as ``n``; 0: no limit."""
    cached_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    """What a prompt token counts that the cache had."""
    predicted_tokens: Positive = 256
    """How long a tenant's answers are taken to be before any has ended."""
    max_tenants: Positive = 10_000
    """That limits are kept for at once; one more is refused while none of them is at rest."""


def check_access(
    keys: Sequence[KeyConfig],
    classes: Collection[str],
    source_of: SourceOf = lambda path: "",
) -> None:
    """No key twice, no class that there is not, and times that are times; ``classes`` are those there are."""
    seen: dict[str, int] = {}
    for index, key in enumerate(keys):
        at = f"keys[{index}]"
        for what, value in (("name", key.name), ("digest", key.digest)):
            first = seen.setdefault(f"{what} {value}", index)
            if first != index:
                raise UserError(f"is that of keys[{first}] too", field=f"{at}.{what}")
        for klass in key.classes:
            if klass not in classes:
                field = f"{at}.classes"
                raise unknown("class", klass, classes, field=field, source=source_of(field))
        try:
            key.expires_ns  # noqa: B018
        except ValueError:
            raise UserError(
                f"{key.expires!r} is no day or time such as 2027-01-31 or 2027-01-31T12:00:00+01:00",
                field=f"{at}.expires",
            ) from None
