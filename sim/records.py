"""What is kept of each request of a run, as somebody reads it.

Requests that live are objects of ``sim.record_table``.  One that has ended is a row there, made a struct when somebody
asks: so a run of a million requests fits into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from stepwell.core.types import RequestId
from stepwell.sim.record_table import Life, RecordTable


class RequestRecord(msgspec.Struct, gc=False):
    """One request's life.  Times in ns, 0 where it did not happen; ``reason`` is empty while it runs."""

    id: RequestId
    arrival_ns: int
    prompt_tokens: int
    klass: str
    tenant: str
    admitted_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    finished_ns: int = 0
    tokens: int = 0
    preemptions: int = 0
    reason: str = ""
    priority: int = 0
    program: str = ""


class Records(Mapping[RequestId, RequestRecord]):
    """Records by id, in the order in which the requests came, which is that of their ids.  Each is a copy."""

    def __init__(self, table: RecordTable) -> None:
        self._table = table

    def __getitem__(self, id: RequestId) -> RequestRecord:
        life = self._table.live.get(id)
        return self._read(id) if life is None else _living(life)

    def __iter__(self) -> Iterator[RequestId]:
        return iter(self._table.ids)

    def __len__(self) -> int:
        return len(self._table.ids)

    def _read(self, id: RequestId) -> RequestRecord:
        (
            arrival_ns, prompt_tokens, admitted_ns, first_ns, last_ns, finished_ns, tokens,
            klass, tenant, program, reason, preemptions, priority,
        ) = self._table.row(self._table.place(id))  # fmt: skip
        words = self._table.words
        return RequestRecord(
            id, arrival_ns, prompt_tokens, words[klass], words[tenant], admitted_ns, first_ns, last_ns,
            finished_ns, tokens, preemptions, words[reason], priority, words[program],
        )  # fmt: skip


def _living(life: Life) -> RequestRecord:
    return RequestRecord(
        life.id, life.arrival_ns, life.prompt_tokens, life.klass, life.tenant, life.admitted_ns, life.first_token_ns,
        life.last_token_ns, life.finished_ns, life.tokens, life.preemptions, life.reason, life.priority, life.program,
    )  # fmt: skip
