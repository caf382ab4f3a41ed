"""Logging of the command line: structlog on stderr, so that stdout stays the answer."""

from __future__ import annotations

import logging
import sys
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")

_least: list[Level] = ["warning"]
_ready: list[Level] = []


def set_level(level: Level) -> None:
    """Show lines of at least ``level``."""
    _least[:] = [level]


def log(level: Level, event: str, **values: object) -> None:
    """One log line.  structlog is imported and configured when the first one is to be shown."""
    if LEVELS.index(level) < LEVELS.index(_least[0]):
        return
    configure()
    import structlog  # lazy: start-up

    getattr(structlog.get_logger("stepwell"), level)(event, **values)


def quiet_refusals() -> None:
    """Say nothing of handshakes that were answered by a refusal: uvicorn takes each for a fault of the application, so
    that whoever has no key could fill the log.  ``stepwell:transport_total`` counts them."""
    logging.getLogger("uvicorn.error").addFilter(_no_refusal)


def _no_refusal(record: logging.LogRecord) -> bool:
    return record.msg != "ASGI callable returned without completing handshake."


def configure() -> None:
    """Send what every part of the program logs to stderr; by itself structlog would print it on stdout."""
    import structlog  # lazy: start-up

    if _ready == _least:
        return
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Plain, whatever is installed: others show what variables held, and that is what clients sent.
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, _least[0].upper())),
        logger_factory=lambda *names: structlog.PrintLogger(sys.stderr),  # whatever stderr is by then
        cache_logger_on_first_use=False,
    )
    _ready[:] = _least
