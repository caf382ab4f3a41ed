"""What is served: a tokenizer, a chat template, and a backend that executes steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from stepwell.core.config import Config
from stepwell.core.placement import Place
from stepwell.core.protocols import Backend, Tokenizer
from stepwell.transports.chat import ChatTemplate
from stepwell.transports.structured import ReadGrammar


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What is served.  ``pages`` replaces ``memory.pages`` if the backend measured what it has room for."""

    name: str
    backend: Backend | Place
    """By itself it is executed on the event loop."""
    tokenizer: Tokenizer
    template: ChatTemplate
    encode: Callable[[str], list[int]] | None = None
    """A text to complete as a prompt, with BOS where the model wants it; None: the tokenizer's ``encode``."""
    close: Callable[[], None] | None = None
    """Called once, when nothing is served any more; not for the backend, which has its own."""
    pages: int = 0
    context: int = 0
    """Tokens of prompt and answer that the model can attend to; 0: as many as the pool holds."""
    logprobs: bool = False
    """Whether the backend gives log-probabilities."""
    quick: bool = False
    """Its tokenizer and template take nanoseconds a letter and never wait: what is short needs no thread."""
    read_grammar: ReadGrammar | None = None
    """Reads what a stranger wrote, so that the backend can be told of it; None: its answers keep to no grammar."""
    sampling: Mapping[str, Any] = {}
    """The model's own defaults of ``SamplingParams``, for fields that a request leaves out."""
    precision: str = ""
    """What the weights are computed in, in the backend's word for it."""
    chat_template: str = ""
    """The text of ``template``, off which the formats of tool calls and reasoning are read; empty: it has none."""
    warnings: tuple[str, ...] = ()
    """Where its files left room for doubt, and what was done about it; ``/v1/models`` shows them."""


def serving_config(config: Config, model: Model) -> Config:
    """The configuration with what the model knows better: pages that there is room for, and its context."""
    replace = msgspec.structs.replace
    pages = model.pages or config.memory.pages
    room = pages * config.memory.page_size
    wanted = [each for each in (config.scheduler.max_context, model.context, room) if each]
    return replace(
        config,
        memory=replace(config.memory, pages=pages),
        scheduler=replace(config.scheduler, max_context=min(wanted)),
    )
