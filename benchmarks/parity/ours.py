"""Drives Stepwell's scheduler under the policy ``vllm`` through an episode, step by step as vLLM is driven."""

from __future__ import annotations

from typing import Any

from stepwell.benchmarks.parity.episodes import Episode
from stepwell.core import registry
from stepwell.core.config import MemoryConfig
from stepwell.core.events import Cancel, Event, StepDone, Submitted
from stepwell.core.instructions import Admitted, Finished, Instruction, Launch, PolicyFault, Preempted
from stepwell.core.limits import SchedulerLimits
from stepwell.core.page_keys import page_keys
from stepwell.core.scheduler import Scheduler
from stepwell.core.types import RequestId

Step = tuple[list[tuple[RequestId, int]], list[RequestId], list[RequestId], list[RequestId]]
"""(request, tokens) by request; admitted in order; preempted and ended by request."""


def make(episode: Episode) -> Scheduler:
    """vLLM bounds neither its line nor how often a request is preempted."""
    machine = episode.machine
    memory = MemoryConfig(allocator=machine.allocator, pages=machine.pages, page_size=machine.page_size)
    return Scheduler(
        SchedulerLimits(
            token_budget=machine.token_budget,
            running_limit=machine.running_limit,
            max_preemptions=0,
        ),
        registry.make_allocator(memory),
        registry.make_policy,
        "vllm",
        {"order": machine.order, "long_prefill_token_threshold": machine.long_prefill_token_threshold},
    )


class Run:
    """One episode on one scheduler; a step takes a nanosecond."""

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.scheduler = make(episode)
        self.members: dict[RequestId, None] = {}
        self.made: dict[RequestId, int] = {}
        self.live: set[RequestId] = set()
        self.done: list[Event] = []

    def play(self) -> list[Step]:
        requests = list(enumerate(self.episode.requests, 1))
        last = requests[-1][1].step
        steps: list[Step] = []
        while self.live or len(steps) <= last:
            now = len(steps)
            events = self.done
            events += [Cancel(id) for id, each in requests if each.cancel == now and id in self.live]
            for id, each in requests:
                if each.step == now:
                    keys = page_keys(each.prompt, self.episode.machine.page_size, b"") if self.reuses() else []
                    asked = Submitted(id, len(each.prompt), each.max_tokens, keys=keys, priority=each.priority)
                    events.append(asked)
                    self.live.add(id)
            self.done = []
            steps.append(self.read(self.scheduler.handle(now, events)))
        return steps

    def reuses(self) -> bool:
        return self.scheduler.state.allocator.reuses_prefixes

    def read(self, out: list[Instruction]) -> Step:
        """Take down what was decided, and execute it: who is at its end produces the end token."""
        tokens: dict[RequestId, int] = {}
        admitted, preempted, ended = [], [], []
        for it in out:
            if isinstance(it, PolicyFault):
                raise AssertionError(it)
            if isinstance(it, Admitted):
                admitted.append(it.request)
            elif isinstance(it, Preempted):
                preempted.append(it.request)
            elif isinstance(it, Finished):
                self.live.discard(it.request)
            elif isinstance(it, Launch):
                tokens, sampled = self.execute(it)
                ended = [id for id in sampled if self.made[id] == self.episode.requests[id - 1].output]
                self.done = [StepDone(it.step, ended)]
                ended = [id for id in sampled if id in ended or self.made[id] == self.asked(id).max_tokens]
                self.live.difference_update(ended)
        return sorted(tokens.items()), admitted, sorted(preempted), sorted(ended)

    def asked(self, id: RequestId) -> Any:
        return self.episode.requests[id - 1]

    def execute(self, launch: Launch) -> tuple[dict[RequestId, int], list[RequestId]]:
        for id in launch.left:
            self.members.pop(id, None)
        self.members.update(dict.fromkeys(launch.joined))
        tokens = dict.fromkeys(self.members, 1) if launch.decode else {}
        sampled = list(tokens)
        for id, _, count, samples in launch.slices:
            tokens[id] = count
            if samples:
                sampled.append(id)
        for id in sampled:
            self.made[id] = self.made.get(id, 0) + 1
        return tokens, sampled
