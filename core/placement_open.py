"""From ``[model]`` to the place where its steps are executed."""

from __future__ import annotations

from stepwell.core.build import build_backend
from stepwell.core.config import Config
from stepwell.core.placement import Inline, Place, Threaded
from stepwell.core.placement_process import Process


def make_place(config: Config) -> Place:
    """The place that ``model.placement`` names, begun: ``open`` waits for its model.  Raises ``UserError``."""
    if config.model.placement == "process":
        return Process(config)
    backend = build_backend(config)
    return Threaded(backend) if config.model.placement == "thread" else Inline(backend)
