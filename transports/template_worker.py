"""The process in which a model's chat template runs, since a template is a program that came with a download.

It is jinja2's immutable sandbox, and around it what no sandbox gives: a bound on processor time (the kernel ends the
process), on memory, on the output, and no way to write a file.  ``templates.py`` starts it and talks to it over pipes:
frames of msgpack, each with its length in four bytes.  The first frame in holds the template and the limits; every
further one holds the variables of one rendering.  Every frame is answered by one: ``text``, or ``error`` and ``kind``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, BinaryIO

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from stepwell.transports.confined import confine, frames, processor_time, send


class Refused(jinja2.TemplateError):
    """The template called ``raise_exception``: these messages are not what it was made for."""


class TooLarge(Exception):
    """The output has more letters than allowed."""


class Generation(Extension):
    """``{% generation %}`` marks the assistant's words for training; here it only holds them."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> jinja2.Environment:
    """As templates expect it that were written for Hugging Face's ``apply_chat_template``."""

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message: str) -> None:
        raise Refused(message)

    def strftime_now(pattern: str) -> str:
        return datetime.now().strftime(pattern)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols], autoescape=False
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = strftime_now
    return made


def render(template: jinja2.Template, variables: Mapping[str, Any], most_letters: int) -> str:
    """The text; raises ``TooLarge`` as soon as it is."""
    parts: list[str] = []
    size = 0
    for part in template.generate(**variables):
        size += len(part)
        if size > most_letters:
            raise TooLarge
        parts.append(part)
    return "".join(parts)


# --------------------------------------------------------------------------------------------------- the process


def answer(template: jinja2.Template, variables: Mapping[str, Any], most_letters: int) -> dict[str, str]:
    """What came of one rendering."""
    try:
        return {"text": render(template, variables, most_letters)}
    except Refused as error:
        return {"error": str(error), "kind": "refused"}
    except SecurityError as error:
        return {"error": str(error), "kind": "unsafe"}
    except (TooLarge, MemoryError, OverflowError):
        return {"error": "", "kind": "size"}
    except RecursionError:
        return {"error": "it calls itself without end", "kind": "failed"}
    except Exception as error:
        # Whatever a template does wrong, from a missing name to a division by zero.
        return {"error": f"{type(error).__name__}: {error}", "kind": "failed"}


def main(source: BinaryIO = sys.stdin.buffer, sink: BinaryIO = sys.stdout.buffer) -> None:
    incoming = frames(source)
    order = next(incoming, None)
    if order is None:
        return
    confine(order["memory_mib"])
    try:
        with processor_time(order["seconds"]):
            template = environment().from_string(order["template"])
    except (jinja2.TemplateError, RecursionError, MemoryError, ValueError, TypeError) as error:
        send(sink, {"error": f"{type(error).__name__}: {error}", "kind": "failed"})
        return
    send(sink, {"text": ""})
    for variables in incoming:
        with processor_time(order["seconds"]):
            told = answer(template, variables, order["most_letters"])
        send(sink, told)


if __name__ == "__main__":
    main()
