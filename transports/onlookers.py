"""Who only looks on at requests breaks nothing: what it raises is logged, and everything goes on without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec

import structlog

from stepwell.core.errors import describe

log = structlog.get_logger("stepwell.service")

P = ParamSpec("P")


def harmless(tell: Callable[P, None]) -> Callable[P, None]:
    """The same, and it never raises."""

    def told(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            tell(*args, **kwargs)
        except Exception as error:
            log.error("one who looks on at requests failed", who=tell.__qualname__, reason=describe(error))

    return told


def tell_all(onlookers: Sequence[Callable[P, None]], *args: P.args, **kwargs: P.kwargs) -> None:
    """Each of them, whatever the others do."""
    for tell in onlookers:
        harmless(tell)(*args, **kwargs)
