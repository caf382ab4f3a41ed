"""The types that settings are made of: numbers within bounds, and names that may stand where they will stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

LARGE = 1 << 40

Positive = Annotated[int, msgspec.Meta(ge=1, le=LARGE)]
Count = Annotated[int, msgspec.Meta(ge=0, le=LARGE)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Name = Annotated[str, msgspec.Meta(min_length=1)]
Word = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
"""A name that may stand in a path such as ``classes.chat.rank``."""
TENANT_NAME = r"^[A-Za-z0-9_.:@/-]{1,64}\Z"
TenantName = Annotated[str, msgspec.Meta(pattern=TENANT_NAME)]
Header = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{0,64}\Z")]
"""The name of an HTTP header, or empty: none."""
Digest = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
"""Of a key or a token, which itself is written nowhere: ``stepwell keys hash`` makes it."""
Options = Mapping[str, object]
"""A plugin's own table; the registry turns it into the plugin's typed struct."""
