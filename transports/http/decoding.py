"""From bytes to a request, at a price that the bytes cannot raise.

A list of millions of tiny things costs seconds if an object is made of each, and every stream would wait.  So what may
be long (the prompt, the chat) is left as bytes at first (``msgspec.Raw``), at a few nanoseconds a byte, and counted
before anything is made of it; all else has to be small.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, TypeVar

import msgspec
from anyio.lowlevel import checkpoint
from msgspec import Raw

from stepwell.transports.errors import RequestError
from stepwell.transports.http.allowed import words_at

T = TypeVar("T")

SMALL = 64 << 10
"""Bytes of JSON that may be anything: made into objects they hold nobody up."""
MOST_FIELD = 256 << 10
"""Bytes of a field that holds a list or an object, the prompt and the chat excepted."""
MOST_BESIDE = 1 << 20
"""Bytes of all that is not the prompt or the chat."""

_AT = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_BEFORE = re.compile(r'"((?:[^"\\]|\\.){1,64})"\s*:\s*[^"{}]*$')
_BYTE = re.compile(r"\(byte (\d+)\)")


class _Sizes(msgspec.Struct):
    """Of the fields that may hold lists and objects: first those that may be long."""

    prompt: Raw = Raw()
    tokens: Raw = Raw()
    messages: Raw = Raw()
    input: Raw = Raw()
    instructions: Raw = Raw()
    stop: Raw = Raw()
    stop_token_ids: Raw = Raw()
    logit_bias: Raw = Raw()

    system: Raw = Raw()
    metadata: Raw = Raw()
    chat_template_kwargs: Raw = Raw()
    tools: Raw = Raw()
    tool_choice: Raw = Raw()


_LONG = ("prompt", "tokens", "messages", "input", "instructions")
_SIZES = msgspec.json.Decoder(_Sizes)


async def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """``body`` as a request; a mistake is an error that names the field and what was expected there."""
    if len(body) <= SMALL:
        return decode(body, decoder)
    # Between two looks at megabytes, everybody else has a turn.
    check_sizes(decode(body, _SIZES), len(body))
    await checkpoint()
    made = decode(body, decoder)
    await checkpoint()
    return made


def check_sizes(sizes: _Sizes, total: int) -> None:
    beside = total
    for name in _Sizes.__struct_fields__:
        size = memoryview(getattr(sizes, name)).nbytes
        if name in _LONG:
            beside -= size
        elif size > MOST_FIELD:
            raise RequestError(f"takes more than {MOST_FIELD >> 10} KiB", field=name)
    if beside > MOST_BESIDE:
        raise RequestError(f"what is not the prompt takes more than {MOST_BESIDE >> 10} KiB")


def decode(body: bytes | Raw, decoder: msgspec.json.Decoder[T], field: str = "") -> T:
    """The same of something small, or of what lies at ``field``."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), field, decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(str(error), bytes(body)) from None


def _invalid(text: str, within: str, kind: Any) -> RequestError:
    match = _AT.match(text)
    what, path = (match["what"], match["path"] or "") if match else (text, "")
    field = (within + path).lstrip(".").replace("[...]", "")
    missing = _MISSING.search(what)
    if missing:
        field = f"{field}.{missing[1]}".lstrip(".")
        what = "is required"
    elif what.startswith("Invalid enum value") and (words := words_at(kind, path)):
        what += f"; it is one of {', '.join(words)}" if len(words) > 1 else f"; only {words[0]} is understood here"
    return RequestError(what[0].lower() + what[1:].replace("`", ""), field=field)


def _malformed(text: str, body: bytes) -> RequestError:
    """JSON knows no NaN, no Infinity and nothing beyond a double: say where, if that can be seen."""
    at = _BYTE.search(text)
    start = body[: int(at[1]) + 1][-512:].decode("utf-8", "replace") if at else ""
    near = _BEFORE.search(start)
    return RequestError(f"the body is not valid JSON: {text}", field=near[1] if near else "", code="invalid_json")


# ------------------------------------------------------------------------------------------------ long lists


@cache
def _few(most: int) -> msgspec.json.Decoder[msgspec.Struct]:
    """Of a list's first items as bytes; what comes after them is read over, and nothing is made of it."""
    fields = [(f"item_{index}", Raw, Raw()) for index in range(most)]
    return msgspec.json.Decoder(msgspec.defstruct("Few", fields, array_like=True))


def items_of(raw: Raw, most: int, field: str) -> list[Raw]:
    """The items of a list, each as bytes; an error if there are more than ``most``."""
    found: tuple[Raw, ...] = msgspec.structs.astuple(decode(raw, _few(most + 1), field))
    items = [each for each in found if memoryview(each).nbytes]
    if len(items) > most:
        raise RequestError(f"at most {most} here", field=field)
    return items
