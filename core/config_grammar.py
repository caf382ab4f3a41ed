"""What a client's grammar may cost: the settings of ``[grammar]``."""

from __future__ import annotations

from typing import Annotated

import msgspec


class GrammarConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds of structured output.  What does not keep to them is refused before anything is queued."""

    source_kib: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 64
    """Size of one schema or grammar, at most."""
    seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 1.0
    """Of processor time to make one ready, at most."""
