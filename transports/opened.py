"""What a service remembers of an answer in progress, beside the answer itself."""

from __future__ import annotations

from typing import NamedTuple

from stepwell.transports.gateway.limits import Ticket
from stepwell.transports.wire import Standing


class Opened(NamedTuple):
    """``ticket``: what was reserved for it; ``standing``: whose it is, also before the scheduler has heard of it."""

    ticket: Ticket
    standing: Standing
