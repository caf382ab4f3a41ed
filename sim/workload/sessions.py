"""Conversations of several turns: each prompt is all that was said before, and something new.

Sessions begin by the clock; a turn comes when the one before is answered and its user has thought.  So that prefixes
are reused as they would be live, prompts carry keys: those of a system prompt are the same for all sessions of a class
and tenant, and those of what was asked and answered for all later turns of the session.
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

_CLASS, _TENANT, _MESSAGE, _ANSWER, _THINK, _TURNS = 10, 20, 30, 40, 50, 70


class SessionClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A class of sessions and its share of them: how many turns, what is said and answered in one, how long a user
    thinks between an answer and the next message, and the tokens of a system prompt (0: none)."""

    turns: Lengths
    message: Lengths
    answer: Lengths
    think: Delay
    system: int = 0
    name: str = "chat"
    share: float = 1.0


class Sessions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``sessions`` that begin by ``arrivals``; class and tenant are a session's, drawn independently.

    A session ends before the turn whose prompt and answer would be more than ``max_context`` tokens.  A session is a
    program, named ``session-7``.  ``key_tokens`` are those of a prefix key: the page size, so that pages are found
    exactly.
    """

    arrivals: Arrivals
    classes: tuple[SessionClass, ...]
    sessions: int = 1_000
    max_context: int = 8_192
    tenants: tuple[TenantMix, ...] = (TenantMix(),)
    key_tokens: int = 16
    seed: int = 0
    name: str = "sessions"


Turn = tuple[int, int, int]
"""Tokens of the message, tokens of the answer, ns of thinking before it."""


def generate_sessions(options: Sessions) -> Workload:
    """The workload that ``options`` describe.  Raises ``UserError`` if they describe none."""
    check_sessions(options)
    count, seed, classes = options.sessions, options.seed, options.classes
    klass = choose(seed, _CLASS, count, classes)
    tenant = choose(seed, _TENANT, count, options.tenants).tolist()
    begins = arrivals_ns(options.arrivals, seed, count).tolist()
    texts = Texts(options.key_tokens)
    systems: dict[tuple[int, int], Text] = {}
    requests: list[TraceRequest] = []
    cut = 0
    turns = _turns(options, klass)
    for index, (k, t, begin_ns) in enumerate(zip(klass.tolist(), tenant, begins, strict=True)):
        if (k, t) not in systems:
            systems[k, t] = texts.grow(EMPTY, classes[k].system)
        said = list(next(turns))
        rows = _fitting(said, classes[k].system, options.max_context)
        cut += len(rows) < len(said)
        pattern = TraceRequest(begin_ns, 1, 1, classes[k].name, options.tenants[t].name, program=f"session-{index}")
        _session(requests, pattern, rows, systems[k, t], texts)
    check_reach(requests, "classes.think")
    notes = [f"{count} sessions generated with seed {seed}"]
    if cut:
        notes.append(f"{cut} sessions end early: their next turn is beyond {options.max_context} tokens of context")
    if not requests:
        raise UserError("no session has a turn that fits", field="max_context")
    return Workload(options.name, requests, key_tokens=options.key_tokens, notes=notes)


def _turns(options: Sessions, klass: np.typing.NDArray[np.int64]) -> Iterator[list[Turn]]:
    """What is said in each session, if there is room."""
    seed, classes = options.seed, options.classes
    turns = counts(seed, _TURNS, klass, [each.turns for each in classes])
    if int(turns.sum()) > MOST_REQUESTS:
        raise UserError(f"makes {int(turns.sum())} requests, more than {MOST_REQUESTS}", field="sessions")
    of = np.repeat(klass, turns)
    message = counts(seed, _MESSAGE, of, [each.message for each in classes]).tolist()
    answer = counts(seed, _ANSWER, of, [each.answer for each in classes]).tolist()
    think = delays_ns(seed, _THINK, of, [each.think for each in classes]).tolist()
    rows = list(zip(message, answer, think, strict=True))
    at = 0
    for each in turns.tolist():
        yield rows[at : at + each]
        at += each


def _fitting(turns: list[Turn], system: int, room: int) -> list[Turn]:
    context = system
    for index, (message, answer, _) in enumerate(turns):
        context += message + answer
        if context > room:
            return turns[:index]
    return turns


def _session(requests: list[TraceRequest], pattern: TraceRequest, turns: list[Turn], text: Text, texts: Texts) -> None:
    """Append the turns of a session."""
    arrival_ns = pattern.arrival_ns
    after: tuple[int, ...] = ()
    for number, (message, answer, think_ns) in enumerate(turns):
        prompt = texts.grow(text, message)
        text = texts.grow(prompt, answer)
        goes_on = number + 1 < len(turns)
        arrival_ns += think_ns if after else 0
        requests.append(
            msgspec.structs.replace(
                pattern,
                arrival_ns=arrival_ns,
                prompt_tokens=prompt.tokens,
                output_tokens=answer,
                keys=texts.prompt_keys(prompt),
                answer_keys=answer_keys(prompt, text) if goes_on else (),
                after=after,
                think_ns=think_ns if after else 0,
            )
        )
        after = (len(requests),)


def check_sessions(options: Sessions) -> None:
    """Raises ``UserError`` for options of which no workload is made."""
    between(options.sessions, 1, MOST_REQUESTS, "sessions")
    between(options.max_context, 2, 1 << 31, "max_context")
    check_seed(options.seed)
    check_arrivals(options.arrivals)
    check_mixes(options.classes, options.tenants)
    for index, each in enumerate(options.classes):
        field = f"classes[{index}]"
        between(each.system, 0, options.max_context - 2, f"{field}.system")
        check_lengths(each.turns, f"{field}.turns")
        check_lengths(each.message, f"{field}.message")
        check_lengths(each.answer, f"{field}.answer")
        check_delay(each.think, f"{field}.think")
