"""The table of responses against a dictionary: found by their tenant only, bounded in bytes, gone when it is time."""

from __future__ import annotations

import sqlite3
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stepwell.transports.store import responses
from stepwell.transports.store.responses import COST, SCHEMA, ResponseRow

ids = st.sampled_from("abcdef")
steps = st.one_of(
    st.tuples(st.just("put"), ids, st.integers(0, 2000), st.integers(1, 9)),
    st.tuples(st.just("touch"), ids, st.integers(1, 20)),
    st.tuples(st.just("remove"), ids),
    st.tuples(st.just("sweep"), st.integers(0, 9)),
)


@given(does=st.lists(steps, max_size=40), most=st.integers(0, 6000))
def test_the_table_is_a_bounded_dictionary(does: list[Any], most: int) -> None:
    db = sqlite3.connect(":memory:")
    for script in SCHEMA.scripts:
        db.executescript(script)
    held: dict[str, ResponseRow] = {}
    for what, *arguments in does:
        if what == "put":
            id, size, expires_at = arguments
            row = ResponseRow(id, "mine", None, None, expires_at, b"x" * size, b"y")
            responses.put(db, row, most)
            held.pop(id, None)
            if _cost(row) <= most:
                held[id] = row
            while sum(map(_cost, held.values())) > most:
                del held[min(held, key=lambda id: (held[id].expires_at, [*held].index(id)))]
        elif what == "touch":
            id, expires_at = arguments
            responses.touch(db, id, expires_at)
            if id in held:
                old = held[id]
                held[id] = ResponseRow(id, "mine", None, None, expires_at, old.response, old.input)
        elif what == "remove":
            responses.remove(db, arguments[0])
            held.pop(arguments[0], None)
        else:
            responses.sweep(db, arguments[0])
            held = {id: row for id, row in held.items() if row.expires_at > arguments[0]}
        assert responses.size(db) == sum(map(_cost, held.values())) <= most
        for id in "abcdef":
            assert responses.find(db, "mine", id, 0) == held.get(id)
            assert responses.find(db, "other", id, 0) is None
            late = held[id].expires_at if id in held else 1
            assert responses.find(db, "mine", id, late) is None
    db.close()


def _cost(row: ResponseRow) -> int:
    return len(row.response) + len(row.input) + COST
