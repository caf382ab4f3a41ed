"""What a run was like for its requests, derived from events and instructions alone.

The same collector reads a simulation as it goes and a journal afterwards.  Definitions (``a`` arrival, ``t_k`` the time
of the k-th output token, ``n`` tokens): TTFT ``t_1 - a``; ITL ``t_k - t_{k-1}``, one value a token; TPOT
``(t_n - t_1) / (n - 1)`` for ``n >= 2``, one value a request; E2E ``t_n - a``.

ITL is kept as gaps with multiplicities: the members of the decode group share every gap, so a step adds one number a
class, not one a request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from stepwell.core.events import Event, RunDone, StepDone, StepFailed, Submitted
from stepwell.core.instructions import Admitted, Finished, Instruction, Launch, Preempted, Rejected, Run
from stepwell.core.types import RequestId


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


class TokenGaps(msgspec.Struct):
    """Inter-token gaps of one class: ``gaps_ns[i]`` occurred ``counts[i]`` times; ``members`` decode together now."""

    gaps_ns: list[int] = []
    counts: list[int] = []
    members: int = 0

    def add(self, gap_ns: int) -> None:
        """One more gap of a single request."""
        self.gaps_ns.append(gap_ns)
        self.counts.append(1)


_REPEAT = Launch(0, True)
"""What is known of a launch that only repeated: the decode group ran."""


class RunMetrics:
    """Feed it every turn through ``observe``; read the public attributes at any time."""

    def __init__(self) -> None:
        self.requests: dict[RequestId, RequestRecord] = {}
        self.gaps: dict[str, TokenGaps] = {}
        self.steps = 0
        self.failed_steps = 0
        self.computed_tokens = 0
        self.recomputed_tokens = 0
        self.cached_tokens = 0
        """Prompt tokens that were found in the KV cache when their requests were first admitted."""
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
        self._take: dict[type, Callable[[int, Any], None]] = {
            StepDone: self._step_done,
            StepFailed: self._step_failed,
            Submitted: self._submitted,
            Launch: self._launch,
            Admitted: self._admitted,
            Preempted: self._preempted,
            Finished: self._finished,
            Rejected: self._rejected,
        }

    @property
    def kv_page_ns(self) -> int:
        """Device pages in use, integrated over time."""
        return self._page_ns + self._pages * self.end_ns

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Take in one turn."""
        self.end_ns = now_ns
        take = self._take
        for event in events:
            if type(event) is RunDone:
                answer = instructions[0]
                assert type(answer) is Run
                self._run(event, answer)
                return
            if type(event) in take:
                take[type(event)](now_ns, event)
        for instruction in instructions:
            if type(instruction) in take:
                take[type(instruction)](now_ns, instruction)

    # ------------------------------------------------------------------------------------------- steps

    def _launch(self, now_ns: int, launch: Launch) -> None:
        self.steps += 1
        self._launch_ns = now_ns
        sampled: Sequence[RequestId] = ()
        if launch.slices:
            sampled = [id for id, _, _, samples in launch.slices if samples]
            for id, start, tokens, _ in launch.slices:
                self.computed_tokens += tokens
                if id in self._marks:
                    self._recomputed(id, start, tokens)
        self._inflight.append((launch, sampled))
        pages = len(launch.growth) >> 1
        if launch.tables:
            pages += sum([len(table) for _, table in launch.tables])
        if pages:
            self._use(now_ns, pages)

    def _step_done(self, now_ns: int, done: StepDone) -> None:
        self.busy_ns += done.elapsed_ns
        self._tokens(now_ns)

    def _tokens(self, now_ns: int) -> None:
        """The tokens of the step launched first among those in flight exist now."""
        launch, sampled = self._inflight.popleft()
        if launch.left:
            for id in launch.left:
                gaps = self._members.pop(id, None)
                if gaps is not None:
                    gaps.members -= 1
                    self._last_ns[id] = self._group_ns
        if launch.decode:
            gap_ns = now_ns - self._group_ns
            for gaps in self.gaps.values():
                if gaps.members:
                    self.computed_tokens += gaps.members
                    gaps.gaps_ns.append(gap_ns)
                    gaps.counts.append(gaps.members)
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
            gaps = self._members[id] = self.gaps[self.requests[id].klass]
            gaps.members += 1
            gaps.add(now_ns - last_ns)

    def _sampled(self, id: RequestId, now_ns: int) -> None:
        record = self.requests[id]
        if record.reason:
            return
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
                if gaps.members:
                    self.computed_tokens += gaps.members * len(between)
                    gaps.gaps_ns += between
                    gaps.counts += [gaps.members] * len(between)
        last_ns = times[-1]
        self.busy_ns += last_ns - self._launch_ns
        self._group_ns = self._launch_ns = last_ns
        self.steps += run.count
        self._inflight.append((_REPEAT, ()))
        if run.growth:
            offsets = run.growth[::3]
            self._pages += len(offsets)
            self._page_ns -= sum([times[offset] for offset in offsets])

    def _step_failed(self, now_ns: int, failed: StepFailed) -> None:
        self.failed_steps += len(self._inflight)
        self._inflight.clear()
        for id, gaps in self._members.items():
            gaps.members -= 1
            self._last_ns[id] = self._group_ns
        self._members.clear()

    # ------------------------------------------------------------------------------------------- requests

    def _submitted(self, now_ns: int, event: Submitted) -> None:
        self.requests[event.request] = RequestRecord(
            event.request,
            now_ns,
            event.prompt_tokens,
            event.klass,
            event.tenant,
            priority=event.priority,
            program=event.program,
        )
        if event.klass not in self.gaps:
            self.gaps[event.klass] = TokenGaps()

    def _admitted(self, now_ns: int, admitted: Admitted) -> None:
        record = self.requests[admitted.request]
        if not record.admitted_ns:
            record.admitted_ns = now_ns
            self.cached_tokens += admitted.cached
        if admitted.shared:
            self._use(now_ns, -admitted.shared)

    def _preempted(self, now_ns: int, preempted: Preempted) -> None:
        self.requests[preempted.request].preemptions += 1
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
        record = self.requests[id]
        record.finished_ns = now_ns
        record.reason = finished.reason
        record.tokens = finished.tokens
        gaps = self._members.pop(id, None)
        if gaps is not None:
            gaps.members -= 1
            record.last_token_ns = self._group_ns
        else:
            record.last_token_ns = self._last_ns.pop(id, 0)
        if finished.reason == "rejected":
            self._refuse("policy")
        if self._marks:
            self._marks.pop(id, None)
        if finished.pages:
            self._use(now_ns, -finished.pages)

    def _rejected(self, now_ns: int, rejected: Rejected) -> None:
        record = self.requests[rejected.request]
        record.finished_ns = now_ns
        record.reason = "rejected"
        self._refuse(rejected.code)

    def _refuse(self, code: str) -> None:
        self.refused[code] = self.refused.get(code, 0) + 1

    def _use(self, now_ns: int, pages: int) -> None:
        self._pages += pages
        self._page_ns -= pages * now_ns
