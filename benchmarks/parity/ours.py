"""Drives Stepwell's scheduler under the policy ``vllm`` through an episode, step by step as vLLM is driven."""

from __future__ import annotations

from stepwell.benchmarks.parity.episodes import Asked, Episode, answer
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
            leaving = [id for id, each in requests if each.cancel == now and id in self.live]
            events += [Cancel(id, self.answer_keys(id)) for id in leaving]
            for id, each in requests:
                if each.step == now:
                    keys = self.keys(each.prompt)
                    asked = Submitted(id, len(each.prompt), each.max_tokens, keys=keys, priority=each.priority)
                    events.append(asked)
                    self.live.add(id)
            self.done = []
            steps.append(self.read(self.scheduler.handle(now, events)))
        return steps

    def keys(self, tokens: list[int]) -> list[int]:
        allocator = self.scheduler.state.allocator
        return page_keys(tokens, allocator.key_tokens, b"") if allocator.reuses_prefixes else []

    def answer_keys(self, id: RequestId) -> list[int]:
        """Of pages that a request's answer fills, less its last token, as the live engine says them when it ends."""
        prompt, made = self.asked(id).prompt, self.made.get(id, 1)
        return self.keys(prompt + [answer(id)] * (made - 1))[len(self.keys(prompt)) :]

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
                stopped = [id for id in sampled if self.made[id] == self.asked(id).output]
                ended = [id for id in sampled if id in stopped or self.made[id] == self.asked(id).max_tokens]
                keys = [(id, self.answer_keys(id)) for id in ended]
                self.done = [StepDone(it.step, stopped, keys=[each for each in keys if each[1]])]
                self.live.difference_update(ended)
        return sorted(tokens.items()), admitted, sorted(preempted), sorted(ended)

    def asked(self, id: RequestId) -> Asked:
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
