"""Tokens by tenant.  The first so many tenants have a label of their own; all others are counted together."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from stepwell.core.metrics_families import Families

OTHER = "other"
KINDS = ("prompt", "cached", "generation")

Row = list[int]
"""Tokens by kind."""


class TenantTokens:
    """``most``: labels; what is given to a tenant is added to its ``row``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.rows: dict[str, Row] = {}

    def row(self, tenant: str) -> Row:
        """Of a tenant, or the one that it shares."""
        row = self.rows.get(tenant)
        if row is None:
            if len(self.rows) >= self._most:
                tenant = OTHER
            row = self.rows.setdefault(tenant, [0, 0, 0])
        return row

    def collect(self, make: Families) -> Iterable[Metric]:
        samples = {
            (tenant, kind): float(count)
            for tenant, row in self.rows.items()
            for kind, count in zip(KINDS, row, strict=True)
        }
        text = "Tokens that tenants were given: of prompts, computed or found in the cache, and of answers."
        yield make.counters("stepwell:tenant_service_tokens", text, ["tenant", "kind"], samples)
