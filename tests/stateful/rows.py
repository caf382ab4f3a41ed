"""What the suspicious device (``executor``) keeps of a request, and of a step in flight."""

from __future__ import annotations

from dataclasses import dataclass, field


class BrokenLawError(AssertionError):
    """The scheduler told its device something that cannot be."""


def must(law: bool, text: str) -> None:
    if not law:
        raise BrokenLawError(text)


@dataclass
class Row:
    """One request: ``stored`` KV positions and ``sampled`` tokens as launched, ``made`` tokens as done."""

    id: int
    prompt: int
    max_tokens: int
    expires_ns: int = 0
    rank: int = 0
    keys: list[int] = field(default_factory=list)
    parent: int = 0
    origin: int = 0
    """Whoever writes its prompt writes that of this request."""
    seated: bool = False
    swapped: bool = False
    begun: bool = False
    ended: bool = False
    table: list[int] = field(default_factory=list)
    host: list[int] = field(default_factory=list)
    stored: int = 0
    found: int = 0
    """Of those stored, how many its last admission found computed by others."""
    sampled: int = 0
    made: int = 0
    copy_step: int = 0
    """The last step that copied it, in or out."""
    preempted: int = 0
    failed: int = 0
    due: dict[str, int] = field(default_factory=dict)
    """Ends that an event just asked for, and the tokens that they keep (-1: those made)."""

    @property
    def known(self) -> int:
        return self.prompt + self.sampled


@dataclass
class Flight:
    """A step launched but not done: who samples in it, which pages it names, and which of them it writes."""

    step: int
    sampled: list[int] = field(default_factory=list)
    pages: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    host_pages: set[int] = field(default_factory=set)
    host_written: set[int] = field(default_factory=set)
