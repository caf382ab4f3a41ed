"""The process in which a client's grammar is read first; see ``grammar_process``, which starts it."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, BinaryIO

from stepwell.core.errors import UserError
from stepwell.core.grammar import Grammar
from stepwell.transports.confined import confine, frames, processor_time, send


def main(source: BinaryIO = sys.stdin.buffer, sink: BinaryIO = sys.stdout.buffer) -> None:
    """The first frame names the function that makes a checker, and its argument; each further one is a grammar."""
    incoming = frames(source)
    order: Any = next(incoming, None)
    if order is None:
        return
    module, _, name = order["checker"].partition(":")
    check = getattr(import_module(module), name)(order["about"])
    confine(order["memory_mib"])
    send(sink, {})
    for asked in incoming:
        with processor_time(order["seconds"]):
            told = _answer(check, Grammar(asked["kind"], asked["source"]))
        send(sink, told)


def _answer(check: Any, grammar: Grammar) -> dict[str, str]:
    try:
        return {"source": check(grammar).source}
    except UserError as error:
        return {"error": error.message}
    except (MemoryError, RecursionError):
        return {"error": "takes too much to be understood"}


if __name__ == "__main__":
    main()
