"""Agent programs: calls of a model with tools in between, each prompt all that came before and what the tool returned.

A program is a chain of calls, or, with ``branches``, a plan, that many chains side by side that go on from it, and one
last call that puts their answers together: calls that wait for calls, as in Parrot (Lin et al., OSDI'24) and Autellix
(Luo et al., 2025).  Prompts carry keys as those of sessions do.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from stepwell.core.errors import UserError
from stepwell.sim.workload.mixes import (
    MOST_REQUESTS,
    Delay,
    Lengths,
    TenantMix,
    Whole,
    between,
    check_delay,
    check_lengths,
    check_mixes,
    check_reach,
    check_seed,
    choose,
    counts,
    delays_ns,
)
from stepwell.sim.workload.prefixes import EMPTY, Text, Texts, answer_keys
from stepwell.sim.workload.rates import Arrivals, arrivals_ns, check_arrivals
from stepwell.sim.workload.request import TraceRequest, Workload

_CLASS, _TENANT, _OBSERVATION, _ANSWER, _TOOL, _CALLS, _TASK = 10, 20, 30, 40, 50, 70, 100
MOST_BRANCHES = 64


class AgentClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A class of programs and its share of them.

    ``calls`` of the model in a chain; ``task`` tokens are asked first, behind ``instructions`` that all programs of a
    class and tenant share (0: none); each further call has ``observation`` tokens more, which a tool took ``tool`` to
    find.  ``branches`` above 1: so many chains, between a plan and a last call.
    """

    calls: Lengths
    task: Lengths
    observation: Lengths
    answer: Lengths
    tool: Delay
    instructions: int = 0
    branches: int = 1
    name: str = "chat"
    share: float = 1.0


class Agents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``programs`` that begin by ``arrivals``; class and tenant are a program's, drawn independently.

    A chain ends before the call whose prompt and answer would be more than ``max_context`` tokens, and a program whose
    last call would be does without.  Programs are named ``program-7``.  ``key_tokens`` are those of a prefix key: the
    page size, so that pages are found exactly.
    """

    arrivals: Arrivals
    classes: tuple[AgentClass, ...]
    programs: int = 500
    max_context: int = 16_384
    tenants: tuple[TenantMix, ...] = (TenantMix(),)
    key_tokens: int = 16
    seed: int = 0
    name: str = "agents"


class _Call(msgspec.Struct, frozen=True):
    """What one call adds: the tool's observation, the answer, and how long the tool took."""

    observation: int
    answer: int
    tool_ns: int


class _Said(msgspec.Struct, frozen=True):
    """A call that was made: its place in the list of requests, when it arrives at the earliest, what it leads to."""

    place: int
    arrival_ns: int
    text: Text


def generate_agents(options: Agents) -> Workload:
    """The workload that ``options`` describe.  Raises ``UserError`` if they describe none."""
    check_agents(options)
    count, seed, classes = options.programs, options.seed, options.classes
    klass = choose(seed, _CLASS, count, classes)
    tenant = choose(seed, _TENANT, count, options.tenants).tolist()
    begins = arrivals_ns(options.arrivals, seed, count).tolist()
    tasks = counts(seed, _TASK, klass, [each.task for each in classes]).tolist()
    programs = _programs(options, klass)
    writer = _Writer(options.max_context, Texts(options.key_tokens))
    shared: dict[tuple[int, int], Text] = {}
    for index, (k, t, begin_ns, task) in enumerate(zip(klass.tolist(), tenant, begins, tasks, strict=True)):
        if (k, t) not in shared:
            shared[k, t] = writer.texts.grow(EMPTY, classes[k].instructions)
        writer.pattern = TraceRequest(
            begin_ns, 1, 1, classes[k].name, options.tenants[t].name, program=f"program-{index}"
        )
        writer.program(shared[k, t], task, next(programs))
    check_reach(writer.requests, "classes.tool")
    notes = [f"{count} programs generated with seed {seed}"]
    if writer.cut:
        notes.append(f"{writer.cut} calls were not made: they are beyond {options.max_context} tokens of context")
    if not writer.requests:
        raise UserError("no program has a call that fits", field="max_context")
    return Workload(options.name, writer.requests, key_tokens=options.key_tokens, notes=notes)


def _programs(options: Agents, klass: Whole) -> Iterator[list[list[_Call]]]:
    """The chains of each program: one, or a plan, its branches, and the last call."""
    seed, classes = options.seed, options.classes
    branches = np.array([each.branches for each in classes], dtype=np.int64)[klass]
    widest = int(branches.max())
    # Element (program, branch), so that more programs change none.
    widths = counts(seed, _CALLS, np.repeat(klass, MOST_BRANCHES), [each.calls for each in classes])
    lengths = widths.reshape(len(klass), MOST_BRANCHES)[:, :widest]
    wide = branches > 1
    used = np.where(np.arange(widest) < branches[:, None], lengths, 0).sum(axis=1) + 2 * wide
    if int(used.sum()) > MOST_REQUESTS:
        raise UserError(f"makes {int(used.sum())} requests, more than {MOST_REQUESTS}", field="programs")
    of = np.repeat(klass, used)
    observation = counts(seed, _OBSERVATION, of, [each.observation for each in classes]).tolist()
    answer = counts(seed, _ANSWER, of, [each.answer for each in classes]).tolist()
    tool = delays_ns(seed, _TOOL, of, [each.tool for each in classes]).tolist()
    calls = map(_Call, observation, answer, tool)
    for count, row in zip(branches.tolist(), lengths.tolist(), strict=True):
        sizes = [1, *row[:count], 1] if count > 1 else row[:1]
        yield [[next(calls) for _ in range(size)] for size in sizes]


class _Writer:
    """Writes the calls of one program after the other."""

    def __init__(self, max_context: int, texts: Texts) -> None:
        self.requests: list[TraceRequest] = []
        self.texts = texts
        self.cut = 0
        self.pattern = TraceRequest(0, 1, 1)
        self._room = max_context

    def program(self, shared: Text, task: int, chains: list[list[_Call]]) -> None:
        if len(chains) == 1:
            self._chain(_Said(0, self.pattern.arrival_ns, shared), task, chains[0])
            return
        (plan,), *branches, (last,) = chains
        planned = self._call(_Said(0, self.pattern.arrival_ns, shared), (), task, plan, goes_on=True)
        if planned is None:
            self.cut += sum(map(len, branches)) + 1
            return
        ends = [self._chain(planned, each[0].observation, each) for each in branches]
        made = [(end, answer) for end, answer in ends if end.place != planned.place]
        after = tuple(end.place for end, _ in made) or (planned.place,)
        latest = max([planned, *(end for end, _ in made)], key=lambda end: end.arrival_ns)
        heard = sum(answer for _, answer in made) or last.observation
        self._call(_Said(0, latest.arrival_ns, planned.text), after, heard, last, goes_on=False)

    def _chain(self, before: _Said, first: int, calls: list[_Call]) -> tuple[_Said, int]:
        """Calls one after the other, as far as there is room; the last one made, and the tokens of its answer."""
        answer = 0
        for number, call in enumerate(calls):
            after = (before.place,) if before.place else ()
            asked = call.observation if number else first
            said = self._call(before, after, asked, call, goes_on=number + 1 < len(calls))
            if said is None:
                self.cut += len(calls) - number - 1
                break
            before, answer = said, call.answer
        return before, answer

    def _call(self, before: _Said, after: tuple[int, ...], asked: int, call: _Call, *, goes_on: bool) -> _Said | None:
        """One call on ``before``'s text; None if there is no room for it."""
        if before.text.tokens + asked + call.answer > self._room:
            self.cut += 1
            return None
        prompt = self.texts.grow(before.text, asked)
        answered = self.texts.grow(prompt, call.answer)
        think_ns = call.tool_ns if after else 0
        request = msgspec.structs.replace(
            self.pattern,
            arrival_ns=before.arrival_ns + think_ns,
            prompt_tokens=prompt.tokens,
            output_tokens=call.answer,
            keys=self.texts.prompt_keys(prompt),
            answer_keys=answer_keys(prompt, answered) if goes_on else (),
            after=after,
            think_ns=think_ns,
        )
        self.requests.append(request)
        return _Said(len(self.requests), request.arrival_ns, answered)


def check_agents(options: Agents) -> None:
    """Raises ``UserError`` for options of which no workload is made."""
    between(options.programs, 1, MOST_REQUESTS // MOST_BRANCHES, "programs")
    between(options.max_context, 2, 1 << 31, "max_context")
    check_seed(options.seed)
    check_arrivals(options.arrivals)
    check_mixes(options.classes, options.tenants)
    for index, each in enumerate(options.classes):
        field = f"classes[{index}]"
        between(each.branches, 1, MOST_BRANCHES, f"{field}.branches")
        between(each.instructions, 0, options.max_context - 2, f"{field}.instructions")
        check_lengths(each.calls, f"{field}.calls")
        check_lengths(each.task, f"{field}.task")
        check_lengths(each.observation, f"{field}.observation")
        check_lengths(each.answer, f"{field}.answer")
        check_delay(each.tool, f"{field}.tool")
