"""The coefficients of ``sim.cost.linear``: a struct, which a compiled module may not define."""

from __future__ import annotations

import msgspec

from stepwell.sim.cost.reach import Reach


class LinearOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Coefficients; a calibration writes them.  ``base_ns`` is at least 1, all others at least 0."""

    base_ns: int = 6_000_000
    prefill_token_ns: int = 30_000
    prefill_request_ns: int = 0
    decode_request_ns: int = 20_000
    kv_token_ps: int = 60_000
    """Per KV position that attention reads, in picoseconds."""
    swap_page_ns: int = 50_000
    """Per page copied between device and host, either way."""
    copy_page_ns: int = 0
    """Per page copied within the device; not told apart from ``base_ns`` unless measured."""
    reach: Reach | msgspec.UnsetType = msgspec.UNSET
    """What the coefficients were fitted on, as least and most of each count; unset: on nothing."""
