"""What a client asks for, whatever shape it asks in."""

from __future__ import annotations

import msgspec

from stepwell.core.sampling import GREEDY, SamplingParams
from stepwell.core.text import Opening
from stepwell.transports.wire import Standing


class Wants(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asked for, beside the prompt."""

    n: int = 1
    max_tokens: int | None = None
    """None: the rest of the context; 0: nothing is said, and the prompt computed all the same."""
    stop: tuple[str, ...] = ()
    opening: Opening = "answer"
    sampling: SamplingParams = GREEDY
    standing: Standing = Standing(klass="chat")
