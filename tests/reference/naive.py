"""The scheduler written a second time from its rules, as plainly as can be: per request, per step, plain lists.

``fcfs`` (and with ``swap`` its sibling) on paged memory, one step at a time.  No decode group, no repeated plans, no
jumps in time; pages are counted, not named.  The real core must agree with it to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepwell.core.limits import SchedulerLimits
from stepwell.sim.cost.linear_options import LinearOptions
from stepwell.sim.workload.request import TraceRequest


@dataclass(eq=False)
class Job:
    id: int
    request: TraceRequest
    most: int  # output tokens at most
    place: str = "coming"  # coming, waiting, running, swapped, ended
    decoding: bool = False  # runs with the others that only decode
    computed: int = 0  # positions whose KV exists
    pages: int = 0
    host: int = 0
    preemptions: int = 0
    token_ns: list[int] = field(default_factory=list)
    reason: str = ""
    end_ns: int = -1

    def known(self) -> int:
        return self.request.prompt_tokens + len(self.token_ns)

    def end(self, now_ns: int, reason: str) -> None:
        self.place, self.reason, self.end_ns, self.pages, self.host = "ended", reason, now_ns, 0, 0

    def leaves(self) -> bool:  # whoever left before it came, or as it came, is not noticed
        return self.place not in ("coming", "ended") and self.request.cancel_ns > self.request.arrival_ns


class Naive:
    def __init__(
        self, requests: Sequence[TraceRequest], limits: SchedulerLimits, cost: LinearOptions, *,
        pages: int, page_size: int, host_pages: int, max_tokens: int, swap: bool,
    ) -> None:  # fmt: skip
        self.limits, self.cost, self.swap = limits, cost, swap
        self.pages, self.page_size, self.host_pages = pages, page_size, host_pages
        room = pages * page_size
        self.jobs = [Job(k, it, min(max_tokens, room - it.prompt_tokens)) for k, it in enumerate(requests, 1)]
        self.work: list[tuple[Job, int]] = []  # the step in flight: (job, tokens)
        self.done_ns = 0  # when it ends; 0: no step in flight

    def run(self) -> list[Job]:
        while True:
            times = [job.request.arrival_ns for job in self.jobs if job.place == "coming"]
            times += [job.request.cancel_ns for job in self.jobs if job.leaves()]
            times += [self.done_ns] if self.done_ns else []
            if not times:
                return self.jobs
            now_ns = min(times)
            if self.done_ns == now_ns:
                self.finish_step(now_ns)
            for job in self.jobs:
                if job.leaves() and job.request.cancel_ns == now_ns:
                    job.end(now_ns, "cancelled")
                elif job.place == "coming" and job.request.arrival_ns == now_ns:
                    job.place = "waiting"
                    if job.most <= 0:
                        job.end(now_ns, "rejected")
            if not self.done_ns:
                self.plan(now_ns)

    def finish_step(self, now_ns: int) -> None:
        self.done_ns = 0
        for job, tokens in self.work:
            job.computed += tokens
            if job.place != "ended" and job.computed == job.known():
                job.token_ns.append(now_ns)
                job.decoding = True
                if len(job.token_ns) == job.request.output_tokens:
                    job.end(now_ns, "stop")
                elif len(job.token_ns) == job.most:
                    job.end(now_ns, "length")

    def pages_of(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def lacks(self, job: Job, tokens: int) -> int:
        return max(self.pages_of(job.computed + tokens) - job.pages, 0)

    def protected(self, job: Job) -> bool:
        return 0 < self.limits.max_preemptions <= job.preemptions

    def free(self) -> int:
        return self.pages - sum(job.pages for job in self.jobs)

    def missing(self) -> int:
        return sum(self.lacks(*item) for item in self.work) - self.free()

    def plan(self, now_ns: int) -> None:
        self.running = [job for job in self.jobs if job.place == "running"]
        self.work = [(job, 1) for job in self.running if job.decoding]
        self.budget = self.limits.token_budget - len(self.work)
        self.copied = 0
        for job in self.running:
            tokens = min(job.known() - job.computed, self.budget)
            if not job.decoding and tokens > 0:
                self.work.append((job, tokens))
                self.budget -= tokens
        if self.missing() > 0:
            self.relieve()
        else:
            for job, tokens in self.work:
                job.pages += self.lacks(job, tokens)
            self.admit()
        if self.work or self.copied:
            self.done_ns = now_ns + self.step_ns()

    def relieve(self) -> None:
        """The latest arrivals give way until the rest fits; nobody is admitted.  Swapped pages come a step later."""
        coming = 0
        for victim in self.running[:0:-1]:
            if self.missing() <= 0:
                break
            if self.protected(victim):
                continue
            stored = self.pages_of(victim.computed)
            if self.swap and stored <= self.host_pages - sum(job.host for job in self.jobs):
                victim.place, victim.host = "swapped", stored
                self.copied += stored
                coming += victim.pages
            else:
                victim.place, victim.computed = "waiting", 0
            victim.pages, victim.decoding, victim.preemptions = 0, False, victim.preemptions + 1
            self.work = [item for item in self.work if item[0] is not victim]
        for job, tokens in sorted(self.work, key=lambda item: item[0].id):
            if self.lacks(job, tokens) <= self.free() - coming:
                job.pages += self.lacks(job, tokens)
            else:  # it sits this step out
                self.work.remove((job, tokens))
                job.decoding = False

    def admit(self) -> None:
        for job in [job for job in self.jobs if job.place in ("waiting", "swapped")]:
            greatest = job.request.prompt_tokens + job.most - 1  # the last output token is never fed back
            room = self.pages_of(greatest if self.protected(job) else job.known())
            spare = self.pages // 100 + 1 if self.running else 0
            tokens = min(job.known(), self.budget) if job.place == "waiting" else 0
            full = len(self.running) >= self.limits.running_limit or room + spare > self.free()
            if full or (job.place == "waiting" and not tokens):
                return
            self.running.append(job)
            job.pages += room
            if tokens:
                self.work.append((job, tokens))
                self.budget -= tokens
            self.copied += job.host
            job.place, job.host = "running", 0

    def step_ns(self) -> int:
        it = self.cost
        prefills = [tokens for job, tokens in self.work if not job.decoding]
        read = sum(job.computed for job, _ in self.work)
        prefill_ns = sum(prefills) * it.prefill_token_ns + len(prefills) * it.prefill_request_ns
        decode_ns = (len(self.work) - len(prefills)) * it.decode_request_ns
        return it.base_ns + prefill_ns + decode_ns + self.copied * it.swap_page_ns + read * it.kv_token_ps // 1000
