"""Log-probabilities as ``/v1/completions`` shows them, kept as JSON: the rows of a prompt are made once, in slices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import msgspec
from anyio.lowlevel import checkpoint
from msgspec import Raw

from stepwell.core.sampling import TokenLogprob

Row = tuple[int, float | None, Sequence[tuple[int, float]] | None]
"""A token, its log-probability, and the best there were in its place."""

ROWS_AT_ONCE = 128
"""Tokens of a prompt whose rows are made without letting others have a turn: less than a millisecond."""

NAMES = ("tokens", "token_logprobs", "top_logprobs", "text_offset")

_encode = msgspec.json.Encoder().encode


class Columns:
    """Four lists of one length that grow together.  No object is left of what was added, and choices share it."""

    def __init__(self) -> None:
        self._parts: dict[str, list[bytes]] = {name: [] for name in NAMES}

    def add(self, lists: Mapping[str, Any]) -> None:
        """More rows, as a list for each name."""
        for name, parts in self._parts.items():
            inside = _encode(lists[name])[1:-1]
            if inside:
                parts.append(inside)

    def raw(self, after: Mapping[str, Any] | None = None) -> Raw:
        """All of them, and a choice's own rows after that."""
        whole = self
        if after is not None:
            whole = Columns()
            whole._parts = {name: list(parts) for name, parts in self._parts.items()}
            whole.add(after)
        lists = [b'"%b":[%b]' % (name.encode(), b",".join(parts)) for name, parts in whole._parts.items()]
        return Raw(b"{" + b",".join(lists) + b"}")


def columns(rows: Iterable[Row], offset: int, token: Callable[[int], str]) -> tuple[dict[str, Any], int]:
    """As lists, and where the text after them begins; ``token`` gives a token's text."""
    tokens, values, tops, offsets = [], [], [], []
    for id, logprob, top in rows:
        tokens.append(token(id))
        values.append(logprob)
        tops.append(None if top is None else {token(other): value for other, value in top})
        offsets.append(offset)
        offset += len(tokens[-1])
    return dict(zip(NAMES, (tokens, values, tops, offsets), strict=True)), offset


async def columns_of_prompt(
    prompt: Sequence[int], given: Sequence[TokenLogprob], token: Callable[[int], str]
) -> Columns:
    """The first token has no row in ``given``: nothing is before it.  Others have a turn between slices."""
    rows: Iterator[Row] = zip(
        prompt,
        chain((None,), (each.logprob for each in given)),
        chain((None,), (each.top for each in given)),
        strict=False,
    )
    made, offset = Columns(), 0
    while part := list(islice(rows, ROWS_AT_ONCE)):
        lists, offset = columns(part, offset, token)
        made.add(lists)
        await checkpoint()
    return made
