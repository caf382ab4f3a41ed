"""How alike the decisions of two runs are that had the same requests and were left to themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import zip_longest

import msgspec

from stepwell.core.types import NS_PER_S
from stepwell.sim.fidelity.observed import Observed


class Agreement(msgspec.Struct, frozen=True):
    """Of two runs, the first the real one.

    ``first_divergence`` is the place of the first decision (admission, preemption, resumption) that is another one, in
    parts of all, at ``diverged_s`` of the real run; 1 and None if none is.  ``same_admissions``: the most admissions
    that both made in the same order, by all.  ``same_victims``: how many of those who gave way did so in both, each as
    often; None if nobody did in either.
    """

    first_divergence: float
    diverged_s: float | None
    same_admissions: float
    same_victims: float | None
    preemptions: tuple[int, int]


def agreement(real: Observed, other: Observed) -> Agreement:
    """See ``Agreement``."""
    place, found_s = 0, None
    longest = max(len(real.decisions), len(other.decisions))
    for mine, theirs in zip_longest(real.decisions, other.decisions):
        if mine is None or theirs is None or mine.same != theirs.same:
            at = mine if mine is not None else real.decisions[-1] if real.decisions else None
            found_s = at.now_ns / NS_PER_S if at is not None else 0.0
            break
        place += 1
    admitted = max(len(real.admissions), len(other.admissions))
    mine_gone, their_gone = Counter(real.victims), Counter(other.victims)
    gone = max(mine_gone.total(), their_gone.total())
    return Agreement(
        place / longest if longest else 1.0,
        found_s,
        common(real.admissions, other.admissions) / admitted if admitted else 1.0,
        (mine_gone & their_gone).total() / gone if gone else None,
        (mine_gone.total(), their_gone.total()),
    )


def common(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """The length of the longest sequence that is part of both, in order (the textbook's table, a row at a time)."""
    row = [0] * (len(other) + 1)
    for mine in one:
        before = 0
        for at, theirs in enumerate(other, 1):
            above = row[at]
            row[at] = before + 1 if mine == theirs else max(above, row[at - 1])
            before = above
    return row[-1]
