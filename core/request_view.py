"""A request as a policy may see it; ``core.protocols`` gives it out with all other interfaces."""

from __future__ import annotations

from typing import Protocol

from stepwell.core.types import RequestId, RequestState


class RequestView(Protocol):
    """A request as a policy may see it: read-only, live, without the true output length."""

    @property
    def id(self) -> RequestId: ...
    @property
    def klass(self) -> str: ...
    @property
    def rank(self) -> int:
        """Rank of its class: 0 is served first."""
        ...

    @property
    def tenant(self) -> str: ...
    @property
    def weight(self) -> float:
        """Of its tenant: one of twice the weight is to be given twice as much; 1 unless configured."""
        ...

    @property
    def priority(self) -> int:
        """What the client asked for: lower is served earlier, 0 if nothing was said."""
        ...

    @property
    def program(self) -> str:
        """The conversation, session or agent whose request it is; empty: none is known."""
        ...

    @property
    def ttft_ns(self) -> int:
        """The objective of its class for the time to the first token; 0: none."""
        ...

    @property
    def tpot_ns(self) -> int:
        """The objective of its class for the time per token after the first; 0: none."""
        ...

    @property
    def aging_ns(self) -> int:
        """The age at which the oldest of its class is to rank with the best; 0: its class says nothing of it."""
        ...

    @property
    def expires_ns(self) -> int:
        """The time after which it is no longer worth starting; 0: never."""
        ...

    @property
    def arrival_ns(self) -> int: ...
    @property
    def state(self) -> RequestState: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def computed(self) -> int:
        """Token positions whose KV exists on the device (steps in flight included)."""
        ...

    @property
    def pending(self) -> int:
        """Known tokens not yet computed: what is left of a prefill; 1 while decoding."""
        ...

    @property
    def known(self) -> int:
        """Prompt and output tokens known so far: ``computed + pending``."""
        ...

    @property
    def generated(self) -> int:
        """Output tokens so far (steps in flight included)."""
        ...

    @property
    def limit(self) -> int:
        """KV positions that it can ever need."""
        ...

    @property
    def capacity(self) -> int:
        """Tokens that its page table can hold; meaningful outside the decode group only."""
        ...

    @property
    def preemptions(self) -> int: ...
    @property
    def protected(self) -> bool:
        """It reached the limit of preemptions: its greatest length is reserved and it may not be preempted again."""
        ...

    @property
    def ready(self) -> bool:
        """Whether no step in flight names it: then it may be admitted or resumed, and its pages come free at once."""
        ...
