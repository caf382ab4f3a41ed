"""What a run was like for its requests, derived from events and instructions alone.

The same collector reads a simulation as it goes and a journal afterwards.  Definitions (``a`` arrival, ``t_k`` the time
of the k-th output token, ``n`` tokens): TTFT ``t_1 - a``; ITL ``t_k - t_{k-1}``, one value a token; TPOT
``(t_n - t_1) / (n - 1)`` for ``n >= 2``, one value a request; E2E ``t_n - a``.

ITL is kept as gaps with multiplicities: the members of the decode group share every gap, so a step adds one number a
class, not one a request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

from stepwell.core import kinds
from stepwell.core.events import Event, RunDone, Submitted
from stepwell.core.instructions import Admitted, Finished, Instruction, Launch, Preempted, Rejected, Run, TableRow
from stepwell.core.types import BoxedId, RequestId
from stepwell.sim.record_table import NEVER, Life, RecordTable
from stepwell.sim.record_table import TokenGaps as TokenGaps
from stepwell.sim.records import Records
from stepwell.sim.records import RequestRecord as RequestRecord

_NOBODY: Sequence[BoxedId] = ()


class _Flight:
    """What is to be known of a launch when its tokens come."""

    __slots__ = ("decode", "joined", "left", "sampled")

    def __init__(
        self, decode: bool, joined: Sequence[BoxedId], left: Sequence[BoxedId], sampled: Sequence[BoxedId]
    ) -> None:
        self.decode = decode
        self.joined = joined
        self.left = left
        self.sampled = sampled


_REPEAT = _Flight(True, _NOBODY, _NOBODY, _NOBODY)
"""Of a launch that only repeated: the decode group ran."""


class RunMetrics:
    """Feed it every turn through ``observe``; read the public attributes at any time."""

    def __init__(self) -> None:
        self._table = RecordTable()
        self._live = self._table.live
        self.requests: Mapping[RequestId, RequestRecord] = Records(self._table)
        self.gaps: dict[str, TokenGaps] = {}
        self._classes: list[TokenGaps] = []
        self.steps = 0
        self.failed_steps = 0
        self.computed_tokens = 0
        self.recomputed_tokens = 0
        self.cached_tokens = 0
        """Prompt tokens that were found in the KV cache when their requests were first admitted."""
        self.admitted_tokens = 0
        """Prompt tokens of requests that were admitted, each counted once."""
        self.keyed = False
        """Whether any request came with keys: without, nothing can be looked up."""
        self.swaps = 0
        self.recomputes = 0
        self.busy_ns = 0
        """Time the device worked."""
        self.end_ns = 0
        self.refused: dict[str, int] = {}
        """Rejected requests by code; ``policy`` where a plan rejected a waiting one."""
        self._pages = 0
        self._pages_ns = 0
        """When their number changed last."""
        self._page_ns = 0
        """Up to then."""
        self._inflight: deque[_Flight] = deque()
        self._launch_ns = 0
        self._group_ns = 0
        """When the decode group sampled last."""
        self._marks: dict[RequestId, int] = {}
        """Positions that a recomputed request had computed before."""

    @property
    def kv_page_ns(self) -> int:
        """Device pages in use, integrated over time."""
        return self._page_ns + self._pages * (self.end_ns - self._pages_ns)

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Take in one turn."""
        self.end_ns = now_ns
        for event in events:
            if type(event) is kinds.STEP_DONE:
                self.busy_ns += event.elapsed_ns
                self._tokens(now_ns)
            elif type(event) is kinds.SUBMITTED:
                self._submitted(now_ns, event)
            elif type(event) is kinds.RUN_DONE:
                answer = instructions[0]
                assert type(answer) is Run
                self._run(event, answer)
                return
            elif type(event) is kinds.STEP_FAILED:
                self._step_failed()
        for instruction in instructions:
            if type(instruction) is kinds.LAUNCH:
                self._launch(now_ns, instruction)
            elif type(instruction) is kinds.FINISHED:
                self._finished(now_ns, instruction)
            elif type(instruction) is kinds.ADMITTED:
                self._admitted(now_ns, instruction)
            elif type(instruction) is kinds.PREEMPTED:
                self._preempted(now_ns, instruction)
            elif type(instruction) is kinds.REJECTED:
                self._rejected(now_ns, instruction)

    # ------------------------------------------------------------------------------------------- steps

    def _launch(self, now_ns: int, launch: Launch) -> None:
        self.steps += 1
        self._launch_ns = now_ns
        sampled: Sequence[BoxedId] = _NOBODY
        growth: list[int]
        slices: list[tuple[BoxedId, int, int, bool]]
        tables: list[TableRow]
        _, decode, growth, joined, left, slices, tables, _, _, _ = kinds.fields(launch)
        if slices:
            sampled = [id for id, _, _, samples in slices if samples]
            for id, start, tokens, _ in slices:
                self.computed_tokens += tokens
                if self._marks and id in self._marks:
                    self._recomputed(id, start, tokens)
        self._inflight.append(_Flight(decode, joined, left, sampled))
        pages = len(growth) >> 1
        for _, table in tables:
            pages += len(table)
        if pages:
            self._use(now_ns, pages)

    def _tokens(self, now_ns: int) -> None:
        """The tokens of the step launched first among those in flight exist now."""
        flight = self._inflight.popleft()
        live = self._live
        for id in flight.left:
            life = live.get(id)
            if life is not None and life.in_group:
                self._leave(life)
        if flight.decode:
            gap_ns = now_ns - self._group_ns
            for gaps in self._classes:
                members = gaps.members
                if members:
                    self.computed_tokens += members
                    gaps.add(gap_ns, members)
            for id in flight.joined:
                life = live.get(id)
                if life is not None and life.sampled_ns != NEVER:
                    self._join(life, now_ns)
            self._group_ns = now_ns
        for id in flight.sampled:
            life = live.get(id)
            if life is not None:  # else it ended meanwhile
                self._sampled(life, now_ns)

    def _join(self, life: Life, now_ns: int) -> None:
        """A member's first step in the group: its gap is its own."""
        self.computed_tokens += 1
        life.in_group = True
        life.gaps.members += 1
        life.gaps.add(now_ns - life.sampled_ns, 1)
        life.sampled_ns = NEVER

    def _leave(self, life: Life) -> None:
        life.in_group = False
        life.gaps.members -= 1
        life.sampled_ns = self._group_ns

    def _sampled(self, life: Life, now_ns: int) -> None:
        if life.first_token_ns:
            life.gaps.add(now_ns - life.sampled_ns, 1)
        else:
            life.first_token_ns = now_ns
        life.sampled_ns = now_ns

    def _run(self, done: RunDone, run: Run) -> None:
        """Repeats taken in one go.  The first was launched before and may have brought changes; the others did not."""
        times = done.done_ns
        self._tokens(times[0])
        if len(times) > 1:
            between = [later - sooner for sooner, later in pairwise(times)]
            for gaps in self._classes:
                members = gaps.members
                if members:
                    self.computed_tokens += members * len(between)
                    gaps.extend(between, members)
        last_ns = times[-1]
        self.busy_ns += last_ns - self._launch_ns
        self._group_ns = self._launch_ns = last_ns
        self.steps += run.count
        self._inflight.append(_REPEAT)
        growth = run.growth
        for index in range(0, len(growth), 3):
            self._use(times[growth[index]], 1)

    def _step_failed(self) -> None:
        self.failed_steps += len(self._inflight)
        self._inflight.clear()
        for life in self._live.values():
            if life.in_group:
                self._leave(life)

    # ------------------------------------------------------------------------------------------- requests

    def _submitted(self, now_ns: int, event: Submitted) -> None:
        id, prompt_tokens, _, klass, tenant, _, keys, priority, program, _ = kinds.fields(event)
        gaps = self.gaps.get(klass)
        if gaps is None:
            gaps = self.gaps[klass] = TokenGaps()
            self._classes.append(gaps)
        self._table.begin(
            Life(
                id, now_ns, prompt_tokens, klass, tenant, priority, program, gaps
            )
        )  # fmt: skip
        if keys:
            self.keyed = True

    def _admitted(self, now_ns: int, admitted: Admitted) -> None:
        life = self._live[admitted.request]
        if not life.admitted_ns:
            life.admitted_ns = now_ns
            self.cached_tokens += admitted.cached
            self.admitted_tokens += life.prompt_tokens
        shared = admitted.shared
        if shared:
            self._use(now_ns, -shared)

    def _preempted(self, now_ns: int, preempted: Preempted) -> None:
        self._live[preempted.request].preemptions += 1
        self._use(now_ns, -preempted.pages)
        if preempted.mode == "swap":
            self.swaps += 1
        else:
            self.recomputes += 1
            if preempted.tokens:
                self._marks[preempted.request] = max(preempted.tokens, self._marks.get(preempted.request, 0))

    def _recomputed(self, id: RequestId, start: int, tokens: int) -> None:
        mark = self._marks[id]
        self.recomputed_tokens += max(0, min(start + tokens, mark) - start)
        if start + tokens >= mark:
            del self._marks[id]

    def _finished(self, now_ns: int, finished: Finished) -> None:
        id: BoxedId = finished.request
        reason, pages = finished.reason, finished.pages
        life = self._live[id]
        life.finished_ns = now_ns
        life.reason = reason
        life.tokens = finished.tokens
        if life.in_group:
            self._leave(life)
        if life.sampled_ns != NEVER:
            life.last_token_ns = life.sampled_ns
        self._table.end(life)
        if reason == "rejected":
            self._refuse("policy")
        if self._marks:
            self._marks.pop(id, None)
        if pages:
            self._use(now_ns, -pages)

    def _rejected(self, now_ns: int, rejected: Rejected) -> None:
        life = self._live[rejected.request]
        life.finished_ns = now_ns
        life.reason = "rejected"
        self._table.end(life)
        self._refuse(rejected.code)

    def _refuse(self, code: str) -> None:
        self.refused[code] = self.refused.get(code, 0) + 1

    def _use(self, now_ns: int, pages: int) -> None:
        """So many more are in use, or less."""
        self._page_ns += self._pages * (now_ns - self._pages_ns)
        self._pages_ns = now_ns
        self._pages += pages
