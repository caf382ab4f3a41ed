"""What both schedulers are given: small machines, and requests drawn from a seed.

An episode starts on an empty machine, so that a difference voids the rest of its episode at most.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal

import msgspec

Draw = tuple[int, int]
"""Least and greatest of a uniform draw."""


class Machine(msgspec.Struct, frozen=True):
    """Sizes and settings; pages of ``page_size`` tokens."""

    token_budget: int = 128
    running_limit: int = 12
    pages: int = 400
    page_size: int = 16
    allocator: Literal["paged", "prefix"] = "paged"
    order: Literal["fcfs", "priority"] = "fcfs"
    long_prefill_token_threshold: int = 0
    same_memory: bool = False
    """vLLM's prefix cache is kept to the rules of ours: pages are found once the step that computes them is done, and
    those of an answer once it has ended.  By itself it finds them as soon as a step is to compute them."""


class Asked(msgspec.Struct, frozen=True):
    """A request: it comes before ``step`` and leaves before step ``cancel`` (0: never); ``output`` ends its answer."""

    step: int
    prompt: list[int]
    max_tokens: int
    output: int
    priority: int = 0
    cancel: int = 0


class Episode(msgspec.Struct, frozen=True):
    """Requests in order of arrival, ids from 1."""

    machine: Machine
    requests: list[Asked]


class Workload(msgspec.Struct, frozen=True):
    """How to draw episodes.  ``gap`` is in steps between arrivals of ``burst`` requests each."""

    name: str
    about: str
    machine: Machine = Machine()
    requests: int = 40
    gap: Draw = (0, 6)
    burst: Draw = (1, 1)
    prompt: Draw = (8, 100)
    output: Draw = (4, 40)
    long_every: int = 0
    """Every so many-th prompt is ten times as long."""
    priorities: int = 1
    cancelled: int = 0
    """So many in a hundred leave early."""
    shared: Draw = (0, 0)
    """Tokens that prompts have in common with others; three kinds of them."""
    turns: bool = False
    """A prompt may go on where an earlier one and its answer ended."""
    like: str = ""
    """The workload whose requests these are, if it has none of its own."""

    def episodes(self, count: int, seed: int) -> Iterator[Episode]:
        for number in range(count):
            draws = random.Random(f"{seed}/{self.like or self.name}/{number}")
            yield Episode(self.machine, _Author(self, draws).write())


class _Author:
    def __init__(self, workload: Workload, draws: random.Random) -> None:
        self.it = workload
        self.draws = draws
        self.token = 1_000
        self.beginnings = [self.tokens(draws.randint(*workload.shared)) for _ in range(3)]
        self.said: list[tuple[int, list[int]]] = []

    def tokens(self, count: int) -> list[int]:
        """Such as were never said before."""
        self.token += count
        return list(range(self.token - count, self.token))

    def write(self) -> list[Asked]:
        it, draws = self.it, self.draws
        asked: list[Asked] = []
        step = 0
        while len(asked) < it.requests:
            for _ in range(draws.randint(*it.burst)):
                asked.append(self.one(step, len(asked) + 1))
            step += draws.randint(*it.gap)
        return asked

    def one(self, step: int, id: int) -> Asked:
        it, draws = self.it, self.draws
        length = draws.randint(*it.prompt)
        if it.long_every and id % it.long_every == 0:
            length *= 10
        output = draws.randint(*it.output)
        cancel = step + draws.randint(1, 60) if draws.randrange(100) < it.cancelled else 0
        capped = draws.randrange(4) == 0
        max_tokens = draws.randint(1, output) if capped else output + draws.randint(0, 20)
        prompt = self.beginning(step) + self.tokens(length)
        if it.turns:
            self.said.append((step, prompt + [answer(id)] * (min(output, max_tokens))))
        return Asked(step, prompt, max_tokens, output, draws.randrange(it.priorities), cancel)

    def beginning(self, step: int) -> list[int]:
        old = [words for at, words in self.said if at + 40 <= step and len(words) < 400]
        if old and self.draws.randrange(2):
            return self.draws.choice(old)
        return self.draws.choice(self.beginnings)


def answer(id: int) -> int:
    """The token that request ``id`` says over and over; no prompt but a later turn's has it."""
    return 500_000 + id


SMALL = Machine(pages=48)
"""Of pages there are fewer than seats could fill."""

PREFIX = Machine(allocator="prefix")

WORKLOADS = [
    Workload("light", "nothing is ever short", gap=(2, 12)),
    Workload("saturated", "all seats taken, a line, memory enough", gap=(0, 2)),
    Workload("no memory", "far more wanted than the pages hold", SMALL, gap=(0, 3), output=(20, 120)),
    Workload("long prompts", "chunks over many steps, pages short", Machine(pages=96), long_every=4, gap=(0, 8)),
    Workload("capped prompts", "as above, long_prefill_token_threshold 40",
             Machine(pages=96, long_prefill_token_threshold=40), long_every=4, gap=(0, 8)),
    Workload("bursts", "ten to twenty at once, then a pause", SMALL, gap=(30, 60), burst=(10, 20), requests=60),
    Workload("short outputs", "one to four tokens", Machine(token_budget=64), gap=(0, 1), output=(1, 4), requests=80),
    Workload("priority", "three priorities, pages short", Machine(pages=48, order="priority"), priorities=3, gap=(0, 3),
             output=(20, 100)),
    Workload("cancels", "half leave, waiting or running", SMALL, gap=(0, 3), output=(20, 80), cancelled=50),
    Workload("mixed", "priorities, long prompts, threshold, cancels, bursts",
             Machine(pages=96, order="priority", long_prefill_token_threshold=48), priorities=2, long_every=6,
             cancelled=20, burst=(1, 5), gap=(0, 20), requests=60),
    Workload("shared prompts", "three system prompts, memory enough", PREFIX, shared=(60, 200), gap=(0, 4)),
    Workload("shared, at once", "arrivals by threes, memory enough", PREFIX, shared=(60, 200), gap=(0, 12),
             burst=(3, 3)),
    Workload("shared, no memory", "three system prompts, pages short", Machine(pages=60, allocator="prefix"),
             shared=(60, 200), output=(20, 100), gap=(0, 4)),
    Workload("turns", "conversations, memory enough", PREFIX, shared=(60, 200), turns=True, gap=(0, 8)),
]  # fmt: skip


def same_memory(workload: Workload) -> Workload:
    return msgspec.structs.replace(
        workload,
        name=f"{workload.name}, same memory",
        about="the same requests, vLLM's prefix cache kept to the rules of ours",
        like=workload.name,
        machine=msgspec.structs.replace(workload.machine, same_memory=True),
    )


WORKLOADS += [same_memory(each) for each in WORKLOADS if each.machine.allocator == "prefix"]

BY_NAME: dict[str, Workload] = {each.name: each for each in WORKLOADS}
