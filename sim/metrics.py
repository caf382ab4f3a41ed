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

from stepwell.core.events import Event, RunDone, StepDone, StepFailed, Submitted
from stepwell.core.instructions import Admitted, Finished, Instruction, Launch, Preempted, Rejected, Run
from stepwell.core.types import RequestId
from stepwell.sim.records import Records
from stepwell.sim.records import RequestRecord as RequestRecord
from stepwell.sim.records import TokenGaps as TokenGaps

_REPEAT = Launch(0, True)
"""What is known of a launch that only repeated: the decode group ran."""


class RunMetrics:
    """Feed it every turn through ``observe``; read the public attributes at any time."""

    def __init__(self) -> None:
        self._records = Records()
        self._live = self._records.live
        self.requests: Mapping[RequestId, RequestRecord] = self._records
        self.gaps: dict[str, TokenGaps] = {}
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
        self._page_ns = 0
        """Over all changes, the time of each page's return less that of its handing out."""
        self._inflight: deque[tuple[Launch, Sequence[RequestId]]] = deque()
        self._launch_ns = 0
        self._members: dict[RequestId, TokenGaps] = {}
        self._group_ns = 0
        """When the decode group sampled last."""
        self._last_ns: dict[RequestId, int] = {}
        """When a request outside the group sampled last."""
        self._marks: dict[RequestId, int] = {}
        """Positions that a recomputed request had computed before."""

    @property
    def kv_page_ns(self) -> int:
        """Device pages in use, integrated over time."""
        return self._page_ns + self._pages * self.end_ns

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Take in one turn."""
        self.end_ns = now_ns
        for event in events:
            if type(event) is StepDone:
                self.busy_ns += event.elapsed_ns
                self._tokens(now_ns)
            elif type(event) is Submitted:
                self._submitted(now_ns, event)
            elif type(event) is RunDone:
                answer = instructions[0]
                assert type(answer) is Run
                self._run(event, answer)
                return
            elif type(event) is StepFailed:
                self._step_failed()
        for instruction in instructions:
            if type(instruction) is Launch:
                self._launch(now_ns, instruction)
            elif type(instruction) is Finished:
                self._finished(now_ns, instruction)
            elif type(instruction) is Admitted:
                self._admitted(now_ns, instruction)
            elif type(instruction) is Preempted:
                self._preempted(now_ns, instruction)
            elif type(instruction) is Rejected:
                self._rejected(now_ns, instruction)

    # ------------------------------------------------------------------------------------------- steps

    def _launch(self, now_ns: int, launch: Launch) -> None:
        self.steps += 1
        self._launch_ns = now_ns
        sampled: list[RequestId] = []
        for id, start, tokens, samples in launch.slices:
            self.computed_tokens += tokens
            if samples:
                sampled.append(id)
            if self._marks and id in self._marks:
                self._recomputed(id, start, tokens)
        self._inflight.append((launch, sampled))
        pages = len(launch.growth) >> 1
        for _, table in launch.tables:
            pages += len(table)
        if pages:
            self._use(now_ns, pages)

    def _tokens(self, now_ns: int) -> None:
        """The tokens of the step launched first among those in flight exist now."""
        launch, sampled = self._inflight.popleft()
        for id in launch.left:
            gaps = self._members.pop(id, None)
            if gaps is not None:
                gaps.members -= 1
                self._last_ns[id] = self._group_ns
        if launch.decode:
            gap_ns = now_ns - self._group_ns
            for gaps in self.gaps.values():
                members = gaps.members
                if members:
                    self.computed_tokens += members
                    gaps.gaps_ns.append(gap_ns)
                    gaps.counts.append(members)
            for id in launch.joined:
                self._join(id, now_ns)
            self._group_ns = now_ns
        for id in sampled:
            self._sampled(id, now_ns)

    def _join(self, id: RequestId, now_ns: int) -> None:
        """A member's first step in the group: its gap is its own."""
        last_ns = self._last_ns.pop(id, None)
        if last_ns is not None:
            self.computed_tokens += 1
            gaps = self._members[id] = self.gaps[self._live[id].klass]
            gaps.members += 1
            gaps.add(now_ns - last_ns)

    def _sampled(self, id: RequestId, now_ns: int) -> None:
        record = self._live.get(id)
        if record is None:
            return  # it ended meanwhile
        if record.first_token_ns:
            self.gaps[record.klass].add(now_ns - self._last_ns[id])
        else:
            record.first_token_ns = now_ns
        self._last_ns[id] = now_ns

    def _run(self, done: RunDone, run: Run) -> None:
        """Repeats taken in one go.  The first was launched before and may have brought changes; the others did not."""
        times = done.done_ns
        self._tokens(times[0])
        if len(times) > 1:
            between = [later - sooner for sooner, later in pairwise(times)]
            for gaps in self.gaps.values():
                members = gaps.members
                if members:
                    self.computed_tokens += members * len(between)
                    gaps.gaps_ns.extend(between)
                    gaps.counts.extend([members] * len(between))
        last_ns = times[-1]
        self.busy_ns += last_ns - self._launch_ns
        self._group_ns = self._launch_ns = last_ns
        self.steps += run.count
        self._inflight.append((_REPEAT, ()))
        if run.growth:
            offsets = run.growth[::3]
            self._pages += len(offsets)
            self._page_ns -= sum([times[offset] for offset in offsets])

    def _step_failed(self) -> None:
        self.failed_steps += len(self._inflight)
        self._inflight.clear()
        for id, gaps in self._members.items():
            gaps.members -= 1
            self._last_ns[id] = self._group_ns
        self._members.clear()

    # ------------------------------------------------------------------------------------------- requests

    def _submitted(self, now_ns: int, event: Submitted) -> None:
        klass = event.klass
        self._records.begin(
            RequestRecord(
                event.request, now_ns, event.prompt_tokens, klass, event.tenant, 0, 0, 0, 0, 0, 0, "",
                event.priority, event.program,
            )
        )  # fmt: skip
        if event.keys:
            self.keyed = True
        if klass not in self.gaps:
            self.gaps[klass] = TokenGaps()

    def _admitted(self, now_ns: int, admitted: Admitted) -> None:
        record = self._live[admitted.request]
        if not record.admitted_ns:
            record.admitted_ns = now_ns
            self.cached_tokens += admitted.cached
            self.admitted_tokens += record.prompt_tokens
        if admitted.shared:
            self._use(now_ns, -admitted.shared)

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
        id = finished.request
        record = self._live[id]
        record.finished_ns = now_ns
        record.reason = finished.reason
        record.tokens = finished.tokens
        gaps = self._members.pop(id, None)
        if gaps is not None:
            gaps.members -= 1
            record.last_token_ns = self._group_ns
        else:
            record.last_token_ns = self._last_ns.pop(id, 0)
        self._records.end(record)
        if finished.reason == "rejected":
            self._refuse("policy")
        if self._marks:
            self._marks.pop(id, None)
        if finished.pages:
            self._use(now_ns, -finished.pages)

    def _rejected(self, now_ns: int, rejected: Rejected) -> None:
        record = self._live[rejected.request]
        record.finished_ns = now_ns
        record.reason = "rejected"
        self._records.end(record)
        self._refuse(rejected.code)

    def _refuse(self, code: str) -> None:
        self.refused[code] = self.refused.get(code, 0) + 1

    def _use(self, now_ns: int, pages: int) -> None:
        self._pages += pages
        self._page_ns -= pages * now_ns
