"""From ``[model]`` to what the server serves: the one place where a model's name becomes a backend and its tokenizer.

Nothing of a backend is imported before it is asked for.
"""

from __future__ import annotations

from pathlib import Path

from stepwell.core.config import Config
from stepwell.core.registry import make, make_cost_model
from stepwell.transports.service import Model

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
    """The integrator's place: the backend ``torch`` by its entry point, its tokenizer, and the chat template.

    ``Model`` says what is wanted: ``pages`` as measured, ``context`` and ``sampling`` as the model's files have them,
    ``logprobs`` true if ``StepResult.logprobs`` is filled.
    """
    raise NotImplementedError
