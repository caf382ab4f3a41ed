"""Words shared by every room: identifiers, enumerations, and the integers that time and memory are measured in.

Time is integer nanoseconds, in names ending ``_ns``.  Pages are integers counted from 0.  Nothing here has behaviour.
"""

from __future__ import annotations

import enum
from typing import Any, Final, Literal, get_args

RequestId = int
"""Internal and unique: the shell counts upwards, whatever name the client gave."""

BoxedId = Any
"""A ``RequestId`` as an object: compiled code unboxes what is annotated as an integer and makes a new object of it for
each table that it looks into, which then compares the two instead of seeing that they are one."""

StepId = int
"""Counts launched steps from 1; 0 means "no step"."""

Page = int

NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000

FOREVER: Final = 1 << 62
"""A count or a time that is never reached; still fits a signed 64-bit integer."""

NO_TIME: Final = FOREVER - 1
"""The same where it is compared in every turn: compiled code keeps integers of up to 63 bits unboxed."""

MAX_PRIORITY = (1 << 31) - 1
"""A request's priority is between this and its negative; lower is served earlier."""
MAX_NAME = 256
"""Letters of a program's name, at most: policies remember some."""


class RequestState(enum.Enum):
    """Where a request is in its life; ``successors`` is the table of legal transitions."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    SWAPPING_OUT = "swapping_out"
    SWAPPED = "swapped"
    SWAPPING_IN = "swapping_in"
    FINISHED = "finished"

    successors: tuple[RequestState, ...]
    """The states that may follow; filled in below, because a member cannot name its siblings."""


WAITING: Final = RequestState.WAITING
PREFILLING: Final = RequestState.PREFILLING
DECODING: Final = RequestState.DECODING
SWAPPING_OUT: Final = RequestState.SWAPPING_OUT
SWAPPED: Final = RequestState.SWAPPED
SWAPPING_IN: Final = RequestState.SWAPPING_IN
FINISHED: Final = RequestState.FINISHED
# A name of its own each, because looking up an enumeration's member takes longer than most of what is done with it.

WAITING.successors = (PREFILLING, FINISHED)
PREFILLING.successors = (
    DECODING,
    SWAPPING_OUT,
    WAITING,
    FINISHED,
)
DECODING.successors = (SWAPPING_OUT, WAITING, FINISHED)
SWAPPING_OUT.successors = (SWAPPED, WAITING, FINISHED)
SWAPPED.successors = (SWAPPING_IN, WAITING, FINISHED)
SWAPPING_IN.successors = (
    PREFILLING,
    DECODING,
    WAITING,
    FINISHED,
)
FINISHED.successors = ()


class Fit(enum.Enum):
    """An allocator's answer to "would this fit?": waiting helps with ``NOT_NOW`` and never with ``NEVER``."""

    FITS = "fits"
    NOT_NOW = "not_now"
    NEVER = "never"


PreemptMode = Literal["swap", "recompute"]
"""How a running request leaves the device: pages copied to the host, or dropped and computed again."""

FinishReason = Literal["stop", "length", "cancelled", "expired", "error", "rejected"]
"""``stop``: an end token or stop string; ``length``: ``max_tokens``; ``expired``: its queue deadline passed."""

RejectCode = Literal[
    "prompt_too_long", "queue_full", "queue_tokens_full", "class_queue_full", "class_queue_tokens_full", "unknown_class"
]

BlockReason = Literal["pages", "seats", "budget", "in_flight", "policy"]
"""Why the head of the line waits: KV pages, the running limit, the budget, a step in flight, the policy's own rule."""

PREEMPT_MODES: tuple[str, ...] = get_args(PreemptMode)
BLOCK_REASONS: tuple[str, ...] = get_args(BlockReason)
