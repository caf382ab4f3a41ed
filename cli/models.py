"""From ``[model]`` to what the server serves: the one place where a model's name becomes a backend and its tokenizer.

Nothing of a backend is imported before it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stepwell.cli.logs import log
from stepwell.core.build import COSTMODEL, ECHO
from stepwell.core.config import Config
from stepwell.core.errors import UserError
from stepwell.core.placement import Place
from stepwell.core.placement_open import make_place
from stepwell.core.registry import make_cost_model
from stepwell.core.schema import nearest
from stepwell.core.words import WordTokenizer
from stepwell.sim.cost.room import check_pool
from stepwell.transports.chat import ChatTemplate, Message
from stepwell.transports.echo import ByteTokenizer, conversation, last_message
from stepwell.transports.grammar_process import GrammarProcess
from stepwell.transports.model import Model

NAMES = (ECHO, COSTMODEL, "smollm2")
"""Models that are named and not looked for."""


NOT_REAL = ("no model is here: answers take the time that a cost model predicts, and say nothing",)


def open_model(config: Config) -> Model:
    """Load the model that ``config.model`` names; every way in which that can fail is an error that names it."""
    _check_path(config.model.path)
    place = make_place(config)
    try:
        # The tokenizer is read here while the weights are read there.
        made = {ECHO: _echo, COSTMODEL: _rehearsal}.get(config.model.path, _real)
        return made(config, config.model.name or Path(config.model.path).name, place)
    except BaseException:
        place.close()
        raise


def _check_path(path: str) -> None:
    """Before anything heavy is loaded."""
    if path not in NAMES and not Path(path).expanduser().exists():
        near = nearest(path, NAMES)
        hint = f"; did you mean {near!r}?" if near else f" ({', '.join(NAMES)} need none)"
        raise UserError(f"{path}: no such file or folder{hint}", field="model.path")


def _echo(config: Config, name: str, place: Place) -> Model:
    place.open()
    return Model(name=name, backend=place, tokenizer=ByteTokenizer(), template=last_message, quick=True)


def _rehearsal(config: Config, name: str, place: Place) -> Model:
    check_pool(make_cost_model(config.cost), config.memory.pages, config.memory.page_size)
    info = place.open()
    return Model(
        name=name,
        backend=place,
        tokenizer=WordTokenizer(),
        template=conversation,
        quick=True,
        context=info.context,
        warnings=NOT_REAL,
    )


def _real(config: Config, name: str, place: Place) -> Model:
    try:
        from stepwell.backends.tokenizer import tokenizer_of  # lazy: torch takes seconds
        from stepwell.backends.vocabulary import vocabulary_of  # lazy: the same
        from stepwell.backends.weights.opening import open_model as open_source  # lazy: the same
        from stepwell.transports.templates import ChatPrompt  # lazy: wants jinja2
    except ModuleNotFoundError as error:
        raise UserError(
            f"a real model needs the extra `serve`: pip install 'stepwell[serve]' (no {error.name})", field="model.path"
        ) from None
    source = open_source(config.model.path)
    tokenizer = tokenizer_of(source, force_pre=config.model.pre_tokenizer)
    info = place.open()
    warnings = [*source.warnings, *tokenizer.warnings]
    grammars = GrammarProcess("stepwell.backends.grammar_check:checker", vocabulary_of(tokenizer), config.grammar)
    template: ChatTemplate = _no_chat
    close, template_text = ExitStack(), ""
    close.callback(grammars.close)
    try:
        prompt = ChatPrompt(tokenizer)
    except UserError as error:
        warnings.append(f"this model cannot chat, only complete: {error}")
    else:
        template, template_text = prompt, prompt.template
        close.callback(prompt.close)
        warnings += prompt.warnings
    for warning in warnings:
        log("warning", warning)
    return Model(
        name=name,
        backend=place,
        tokenizer=tokenizer,
        template=template,
        chat_template=template_text,
        encode=tokenizer.prompt,
        close=close.close,
        pages=info.pages,
        context=info.context or source.config.context,
        precision=info.dtype,
        logprobs=True,
        read_grammar=grammars,
        warnings=tuple(warnings),
    )


def _no_chat(messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
    raise UserError("this model has no chat template; /v1/completions takes text", field="messages")
