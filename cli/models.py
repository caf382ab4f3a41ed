"""From ``[model]`` to what the server serves: the one place where a model's name becomes a backend and its tokenizer.

Nothing of a backend is imported before it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepwell.cli.logs import log
from stepwell.core.config import Config
from stepwell.core.errors import UserError
from stepwell.core.registry import make, make_cost_model
from stepwell.transports.service import ChatTemplate, Message, Model

ECHO = "echo"


def open_model(config: Config) -> Model:
    """Load the model that ``config.model`` names; every way in which that can fail is an error that names it."""
    name = config.model.name or Path(config.model.path).name
    if config.model.path == ECHO:
        return _echo(config, name)
    return _torch(config, name)


def _echo(config: Config, name: str) -> Model:
    from stepwell.transports.echo import ByteTokenizer, last_message  # lazy: only for this model

    backend = make("backends", ECHO, cost=make_cost_model(config.cost))
    return Model(name=name, backend=backend, tokenizer=ByteTokenizer(), template=last_message)


def _torch(config: Config, name: str) -> Model:
    try:
        from stepwell.backends.tokenizer import tokenizer_from_folder, tokenizer_from_gguf  # lazy: torch takes seconds
        from stepwell.backends.weights.opening import open_model as open_source  # lazy: the same
        from stepwell.transports.templates import ChatPrompt  # lazy: wants jinja2
    except ModuleNotFoundError as error:
        raise UserError(
            f"a real model needs the extra `serve`: pip install 'stepwell[serve]' (no {error.name})", field="model.path"
        ) from None
    chosen, memory, scheduler = config.model, config.memory, config.scheduler
    source = open_source(chosen.path)
    gguf = source.kind == "gguf"
    try:
        tokenizer = tokenizer_from_gguf(source.gguf_metadata) if gguf else tokenizer_from_folder(source.path)
    except UserError as error:
        # It knows which key is wrong, and not in which file.
        raise UserError(f"{source.path}: {error}", field="model.path") from None
    backend = make(
        "backends",
        "torch",
        {key: getattr(chosen, key) for key in ("path", "dtype", "threads", "deterministic")},
        source=source,
        pages=memory.pages,
        page_size=memory.page_size,
        host_pages=memory.host_pages,
        token_budget=scheduler.token_budget,
        running_limit=scheduler.running_limit,
    )
    warnings = [*source.warnings, *tokenizer.warnings]
    template: ChatTemplate = _no_chat
    close = None
    try:
        prompt = ChatPrompt(tokenizer)
    except UserError as error:
        warnings.append(f"this model cannot chat, only complete: {error}")
    else:
        template, close = prompt, prompt.close
        warnings += prompt.warnings
    for warning in warnings:
        log("warning", warning)
    return Model(
        name=name,
        backend=backend,
        tokenizer=tokenizer,
        template=template,
        encode=tokenizer.prompt,
        close=close,
        context=source.config.context,
        logprobs=True,
        warnings=tuple(warnings),
    )


def _no_chat(messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
    raise UserError("this model has no chat template; /v1/completions takes text", field="messages")
