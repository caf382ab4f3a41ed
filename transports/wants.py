"""What a client asks for, whatever shape it asks in."""

from __future__ import annotations

import msgspec

from stepwell.core.sampling import GREEDY, SamplingParams
from stepwell.core.text import Opening
from stepwell.transports.parsing.parsers import MakeReading
from stepwell.transports.wire import Standing


class Wants(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asked for, beside the prompt."""

    n: int = 1
    max_tokens: int | None = None
    """None: the rest of the context; 0: nothing is said, and the prompt computed all the same."""
    stop: tuple[str, ...] = ()
    opening: Opening = "answer"
    sampling: SamplingParams = GREEDY
    grammar_field: str = ""
    """Where the grammar in ``sampling`` was, if there is one."""
    standing: Standing = Standing(klass="chat")
    cache_salt: str = ""
    """Prefixes are shared with requests of the same tenant and salt only."""
    reading: MakeReading | None = None
    """Who tells calls and reasoning from content, if there may be any."""


def of_a_later_choice(first: SamplingParams, index: int) -> SamplingParams:
    """A seed of its own, or all would be the same; and nothing of the prompt, which the first has told."""
    seed = first.seed if first.seed is None else (first.seed + index) & ((1 << 63) - 1)
    return msgspec.structs.replace(first, seed=seed, prompt_logprobs=-1)
