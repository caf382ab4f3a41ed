"""Conversations as ShareGPT has them: ``[{"id": …, "conversations": [{"from": "human", "value": …}, …]}, …]``.

Also read: ``messages`` of ``role`` and ``content``, and one conversation a line instead of a list.  Every answer that
follows a prompt becomes a request; its prompt is the whole text before it, so the turns of a conversation share what
they have in common, answers included, in blocks of 16 tokens.  Conversations share nothing with each other.

There is no time in such a file.  Conversations begin at random (Poisson, ``rate_per_s``), a turn comes when the answer
before it is there and its reader has thought (exponential, ``think_s`` in the mean; ``TraceRequest.after``).

There are no tokens in it either.  With a tokenizer (``count_tokens``, in Python or ``--tokenizer``) messages are
counted by it; without one a message has a token for every ``chars_per_token`` letters, rounded up, and a note says so.
What a chat template puts around messages is not counted.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TextIO

import msgspec
import numpy as np

from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_S
from stepwell.sim.workload import draws
from stepwell.sim.workload.reading import LONGEST_LINE, Format, Intake, Reading
from stepwell.sim.workload.request import TraceRequest, Workload
from stepwell.sim.workload.rows import MOST_TOKENS, RowError, program_name, shown

BLOCK_TOKENS = 16
PROMPTS, ANSWERS = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
_OTHERS = ("system", "tool", "function")
_STARTS, _THINKING = 80, 81
"""Purposes of draws (``draws.uniforms``)."""

CountTokens = Callable[[str], int]


class ShareGptOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See the module; ``rate_per_s`` counts conversations."""

    rate_per_s: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    think_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 10.0
    chars_per_token: Annotated[float, msgspec.Meta(ge=0.1, le=100)] = 4.0
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0


Turn = tuple[int, int]
"""Tokens before an answer, and of it."""


def read_conversations(
    path: str | os.PathLike[str],
    *,
    count_tokens: CountTokens | None = None,
    options: ShareGptOptions | None = None,
    skip_bad: bool = False,
    limit: int | None = None,
) -> Workload:
    """A file of conversations; raises ``UserError``."""
    reading = Reading(skip_bad, limit=limit, options=options or ShareGptOptions())
    return _read(Path(path), SHAREGPT, reading, count_tokens)


def _read(path: Path, format: Format, reading: Reading, count_tokens: CountTokens | None = None) -> Workload:
    options: ShareGptOptions = reading.options
    count = count_tokens or (lambda text: math.ceil(len(text) / options.chars_per_token))
    intake = Intake(path, reading.skip_bad, unit="conversation")
    chats: list[tuple[str, list[Turn]]] = []
    made = 0
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, found in objects(path, file):
            if reading.limit is not None and made >= reading.limit:
                break
            try:
                name, turns = _conversation(number, found, count)
            except RowError as error:
                intake.refuse(number, error)
                continue
            if turns:
                chats.append((name, turns))
                made += len(turns)
            else:
                intake.drop(number, "no answer follows a prompt")
    if not chats:
        raise UserError(f"{path}: no conversation can be used", field="trace")
    report = intake.report(format)
    report = msgspec.structs.replace(report, rows=report.rows + len(chats), used=len(chats))
    notes = [f"{len(chats)} conversations begin at {options.rate_per_s:g} a second, drawn with seed {options.seed}"]
    if count_tokens is None:
        notes.append(f"no tokenizer: {options.chars_per_token:g} letters were taken for a token")
    return Workload(path.stem, _requests(chats, options), report, BLOCK_TOKENS, notes)


def objects(path: Path, file: TextIO) -> Iterator[tuple[int, object]]:
    """The objects of a JSON list or of lines of JSON, numbered from 1, without reading the whole file at once."""
    decoder = json.JSONDecoder()
    buffer, at, number, size = "", 0, 0, 1 << 20
    while True:
        while at < len(buffer) and (buffer[at] in "[,]" or buffer[at].isspace()):
            at += 1
        found, end, why = None, -1, "it is cut short"
        if at < len(buffer):
            try:
                found, end = decoder.raw_decode(buffer, at)
            except (ValueError, RecursionError) as error:
                why = str(error)
        if end >= 0 and (end < len(buffer) or isinstance(found, dict)):
            number += 1
            at = end
            yield number, found
            continue
        news = file.read(size) if len(buffer) - at < LONGEST_LINE else ""
        if not news:
            if at < len(buffer):
                raise UserError(f"{path}, conversation {number + 1}: not JSON: {why}", field="trace")
            return
        buffer, at, size = buffer[at:] + news, 0, min(2 * size, LONGEST_LINE)


def _conversation(number: int, found: object, count: CountTokens) -> tuple[str, list[Turn]]:
    """Its name, and its turns."""
    if not isinstance(found, dict):
        raise RowError(f"must be an object, not {shown(found)}")
    messages = found.get("conversations", found.get("messages"))
    if not isinstance(messages, list):
        raise RowError("must have a list 'conversations' (or 'messages')")
    name = program_name(found["id"], "id") if found.get("id") not in (None, "") else f"conversation-{number}"
    turns: list[Turn] = []
    before, asked = 0, False
    for message in messages:
        role, text = _message(message)
        tokens = count(text)
        if role in ANSWERS and asked and before and tokens:
            turns.append((before, tokens))
            asked = False
        asked = asked or role in PROMPTS
        before += tokens
        if before > MOST_TOKENS:
            raise RowError(f"more than {MOST_TOKENS} tokens")
    return name, turns


def _message(message: object) -> tuple[str, str]:
    if not isinstance(message, dict):
        raise RowError(f"a message must be an object, not {shown(message)}")
    role, text = message.get("from", message.get("role")), message.get("value", message.get("content"))
    if role not in (*PROMPTS, *ANSWERS, *_OTHERS):
        raise RowError(f"a message must be from one of {', '.join((*PROMPTS, *ANSWERS, *_OTHERS))}, not {shown(role)}")
    if not isinstance(text, str):
        raise RowError(f"a message must be text, not {shown(text)}")
    return str(role), text


def _requests(chats: list[tuple[str, list[Turn]]], options: ShareGptOptions) -> list[TraceRequest]:
    """One after another in time, so that places count up with them."""
    gaps = draws.exponentials(draws.uniforms(options.seed, _STARTS, len(chats)))
    starts = np.cumsum(np.rint(gaps * (NS_PER_S / options.rate_per_s)).astype(np.int64)).tolist()
    total = sum(len(turns) for _, turns in chats)
    thinking = draws.exponentials(draws.uniforms(options.seed, _THINKING, total))
    think_ns = np.rint(thinking * (options.think_s * NS_PER_S)).astype(np.int64).tolist()
    requests: list[TraceRequest] = []
    block = 0
    for start_ns, (name, turns) in zip(starts, chats, strict=True):
        for place, (prompt, output) in enumerate(turns):
            before = len(requests)
            full, all_full = prompt // BLOCK_TOKENS, (prompt + output) // BLOCK_TOKENS
            requests.append(
                TraceRequest(
                    start_ns,
                    prompt,
                    output,
                    keys=list(range(block, block + full)),
                    program=name,
                    after=(before,) if place else (),
                    think_ns=think_ns[before] if place else 0,
                    answer_keys=tuple(range(block + full, block + all_full)),
                )
            )
        block += sum(turns[-1]) // BLOCK_TOKENS + 1
    return requests


def _recognises(first: str) -> bool:
    start = first.lstrip()
    return start == "[" or (
        start.startswith(("[{", "[ {", "{")) and any(f'"{key}"' in start for key in ("conversations", "messages"))
    )


SHAREGPT = Format(
    "sharegpt",
    '[{"id": …, "conversations": [{"from": "human", "value": …}, …]}, …]',
    _recognises,
    _read,
    ShareGptOptions,
)
