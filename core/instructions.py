"""What leaves the scheduler: the decisions, as data.  A shell executes them; the journal records them.

``Launch`` is a *delta* against the launch before it, because the cost of a step follows what changes: a backend keeps
a mirror of the decode group and of the page tables and applies the difference.
"""

from __future__ import annotations

import msgspec

from stepwell.core.types import (
    BlockReason,
    FinishReason,
    Page,
    PreemptMode,
    RejectCode,
    RequestId,
    StepId,
)

SliceRow = tuple[RequestId, int, int, bool]
"""(request, first position, tokens, does it sample a token at its last position)."""

TableRow = tuple[RequestId, list[Page]]
"""(request, its whole page table): it was just taken onto the device, whatever table it had before is void."""

CopyRow = tuple[RequestId, list[Page], list[Page]]
"""(request, device pages, host pages), pairwise; the direction is the field's."""

PageCopy = tuple[Page, Page]
"""(source, destination), both on the device."""


class Launch(msgspec.Struct, array_like=True, tag="launch", gc=False):
    """Execute one step: copies first, then one forward pass over slices and the decode group, then sample.

    Swaps come first, then ``copies`` within the device; none of these reads what another writes.

    ``decode`` says whether the group takes part; each member then computes one token at its next position and samples
    the following one.  ``joined`` and ``left`` change the group *before* this step; a request that joins was sampled in
    an earlier step.  ``growth`` is flat: request, page, request, page, … (one page appended to each).
    """

    step: StepId
    decode: bool = False
    growth: list[int] = []
    joined: list[RequestId] = []
    left: list[RequestId] = []
    slices: list[SliceRow] = []
    tables: list[TableRow] = []
    swap_out: list[CopyRow] = []
    swap_in: list[CopyRow] = []
    copies: list[PageCopy] = []

    def repeats(self) -> bool:
        """Whether it does what the step before it did: only the decode group, nobody joined or left."""
        return self.decode and not (
            self.joined or self.left or self.slices or self.tables or self.swap_out or self.swap_in or self.copies
        )


class Run(msgspec.Struct, array_like=True, tag="run", gc=False):
    """The answer to ``RunDone``: ``count`` steps from ``step`` on each repeated the one before.

    ``growth`` is flat: offset of the step, request, page, … as the steps' launches would have had it, in order.
    """

    step: StepId
    count: int
    growth: list[int]


class Rejected(msgspec.Struct, array_like=True, tag="rejected", gc=False):
    """Refused on arrival; it never was part of the queue.  ``limit`` is the number that it exceeded."""

    request: RequestId
    code: RejectCode
    limit: int = 0


class Admitted(msgspec.Struct, array_like=True, tag="admitted", gc=False):
    """Taken from the waiting line onto the device (the first time, or again after a recompute preemption).

    ``cached`` tokens of its prefix were found in the KV cache; ``shared`` of its pages others hold too.
    """

    request: RequestId
    cached: int = 0
    shared: int = 0


class Preempted(msgspec.Struct, array_like=True, tag="preempted", gc=False):
    """Taken off the device, giving up ``pages`` there.  ``tokens`` had been computed: lost by recompute, kept by swap.

    ``beneficiary`` is the request it gave way to, or 0; ``reason`` is the policy's word for why.
    """

    request: RequestId
    mode: PreemptMode
    reason: str
    beneficiary: RequestId
    tokens: int
    pages: int


class Resumed(msgspec.Struct, array_like=True, tag="resumed", gc=False):
    """A swapped request is being copied back."""

    request: RequestId


class Blocked(msgspec.Struct, array_like=True, tag="blocked", gc=False):
    """The head of the line cannot be admitted, and why; said once, when head or reason changes."""

    request: RequestId
    reason: BlockReason
    short: int = 0


class Finished(msgspec.Struct, array_like=True, tag="finished", gc=False):
    """The request's one end.  ``tokens`` output tokens count as its answer; ``pages`` device pages come free."""

    request: RequestId
    reason: FinishReason
    tokens: int
    pages: int = 0
    why: str = ""
    """A policy's word for why it rejected a waiting request, or what failed if it ends in error."""


class Wake(msgspec.Struct, array_like=True, tag="wake", gc=False):
    """Send a ``Timer`` event at ``at_ns`` unless a later ``Wake`` replaced it."""

    at_ns: int


class CacheReset(msgspec.Struct, array_like=True, tag="reset", gc=False):
    """The answer to ``ResetCache``: ``pages`` that were kept for reuse, and that nobody held, are blank now."""

    pages: int


class PolicyFault(msgspec.Struct, array_like=True, tag="fault", gc=False):
    """The policy broke a rule; no step is launched any more until ``UsePolicy`` comes.

    A plan that breaks a rule is not applied, not even in part.
    """

    policy: str
    step: StepId
    rule: str
    detail: str


Instruction = (
    Launch | Run | Rejected | Admitted | Preempted | Resumed | Blocked | Finished | Wake | CacheReset | PolicyFault
)
