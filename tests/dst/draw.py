"""A scenario from a seed: policies, allocators, depths and places take turns, everything else is drawn."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

from stepwell.core.registry import Group, discover
from stepwell.tests.dst.dice import DICE
from stepwell.tests.dst.scenario import (
    MS,
    Act,
    Close,
    Fault,
    Hold,
    House,
    Jump,
    Lost,
    OutOfMemory,
    Pin,
    Raises,
    Reset,
    Scenario,
    Slow,
    Stall,
    Table,
    Twist,
    UsePolicy,
    Visit,
)

BAD = "stepwell.tests.core.bad_policies:Breaks"
HOW = ("unknown", "raises", "exits", "observe", "empty", "past")
AGED: Table = {"aging_s": 0.2}
GUESSED: Table = {**AGED, "predictor_options": {"window": 2, "first": 4}}
OPTIONS: dict[str, Table] = {
    "chat-batch": AGED,
    "static": {"batch_size": 3},
    "sjf": GUESSED,
    "srpt": GUESSED,
    "mlfq": {**AGED, "quantum": 2, "output_cost": 2},
    "plas": {**AGED, "quantum": 8, "output_cost": 4},
}
"""So that things happen within a short life; policies that are not named have their defaults."""
HAPPENS_MS = 1500
"""Visits and acts come within so long."""


def options_of(policy: str) -> Table:
    return OPTIONS.get(policy, {})


def scenario_of(seed: int) -> Scenario:
    """The same on every machine, whatever plugins others have installed."""
    draw = Random(seed)
    house = _house(seed, draw)
    visits = _visits(draw, house)
    troubles = _troubles(draw, visits)
    return Scenario(
        seed=seed,
        house=house,
        visits=visits,
        faults=[each for each in troubles if isinstance(each, Fault)],
        twists=[each for each in troubles if isinstance(each, Twist)],
        acts=[each for each in troubles if isinstance(each, Act)],
    )


@cache
def own(group: Group) -> list[str]:
    """The names of our own plugins."""
    return [name for name, (first, *_) in discover(group).items() if first.target.startswith("stepwell.")]


def _house(seed: int, draw: Random) -> House:
    policies = [*own("policies"), DICE, DICE, DICE]
    rest, policy = divmod(seed, len(policies))
    rest, allocator = divmod(rest, len(own("allocators")))
    named = policies[policy]
    rejects = draw.random() < 0.3
    options: Table = {"seed": seed, "rejects": rejects} if named == DICE else options_of(named)
    if draw.random() < 0.04:
        named, options = BAD, {"at": draw.randint(2, 30), "how": draw.choice(HOW)}
    page_size = draw.choice((1, 2, 4, 5, 8))
    running = draw.randint(1, 6)
    return House(
        policy=named,
        options=options,
        shadow=draw.choice(own("policies")) if draw.random() < 0.1 else "",
        allocator=own("allocators")[allocator],
        pages=draw.randint(2, 16) + (8 if page_size < 4 else 0),
        page_size=page_size,
        host_pages=draw.choice((0, 3, 8, 30)),
        token_budget=running + draw.choice((0, 4, 20)),
        running_limit=running,
        depth=1 + rest % 3,
        max_waiting=draw.choice((3, 10, 100)),
        max_preemptions=draw.randint(1, 4),
        max_failures=draw.choice((0, 1, 3)),
        process=draw.random() < 0.5,
        instant=draw.random() < 0.15,
        segment_turns=draw.choice((0, 0, 7, 50)),
    )


def _visits(draw: Random, house: House) -> list[Visit]:
    spread_ms = draw.choice((0, 50, 400, HAPPENS_MS))
    leaving, odd = draw.choice((0.0, 0.2, 0.6)), draw.choice((0.0, 0.2))
    visits: list[Visit] = []
    for key in range(1, draw.randint(1, draw.choice((6, 14, 24))) + 1):
        at_ns = visits[-1].at_ns if visits and draw.random() < 0.3 else draw.randint(0, spread_ms * MS)
        visits.append(_visit(draw, house, key, at_ns, visits, leaving, odd))
    return visits


def _visit(draw: Random, house: House, key: int, at_ns: int, before: list[Visit], leaving: float, odd: float) -> Visit:
    twin = draw.choice(before) if before and draw.random() < 0.2 else None
    tenant = twin.tenant if twin else draw.choice(("default", "default", "b"))
    length = draw.randint(1, draw.choice((3, 12, house.cap)))
    listens = draw.random() < 0.5
    changes: dict[str, Any] = {}
    if draw.random() < leaving:
        changes = draw.choice(
            (
                {"leaves_after": draw.randint(1, 6)},
                {"leaves_ns": draw.choice((1, draw.randint(1, 300 * MS)))},
                {"stops_after": (at := draw.randint(1, 6)), "keeps": draw.randint(0, at), "listens": True},
                {"raises_after": draw.randint(1, 5), "listens": True},
            )
        )
        changes["cancels"] = draw.choice((1, 2, 3))
    listens = changes.pop("listens", listens)
    return Visit(
        key=key,
        at_ns=at_ns,
        prompt=twin.prompt if twin else _prompt(draw, house, key, before),
        length=length,
        max_tokens=draw.randint(1, draw.choice((8, 2 * house.cap))),
        endless=draw.random() < odd / 2,
        klass=draw.choice(("chat", "batch")),
        tenant=tenant,
        priority=draw.randint(-2, 2),
        program=draw.choice(("", "", "loop", "agent")),
        expires_ns=draw.randint(1, 200 * MS) if draw.random() < odd else 0,
        parent=twin.key if twin and twin.at_ns <= at_ns and draw.random() < 0.8 else 0,
        listens=listens,
        lag_ns=draw.choice((MS, 30 * MS)) if draw.random() < odd else 0,
        **changes,
    )


def _prompt(draw: Random, house: House, key: int, before: list[Visit]) -> list[int]:
    """Tokens that name visit and place, so that a mix-up shows; behind what another said, now and then."""
    most = draw.choice((3, house.cap // 2, house.cap + 1))
    own = [1000 * key + place for place in range(1, draw.randint(1, max(most, 1)) + 1)]
    if before and draw.random() < 0.4:
        other = draw.choice(before)
        said = other.prompt + other.answer(min(other.length, other.max_tokens))
        own = said[: draw.randint(0, len(said))] + own
    return own[: house.cap + 1]


def _troubles(draw: Random, visits: list[Visit]) -> list[Any]:
    """None at all one time in four."""
    if draw.random() < 0.25:
        return []

    def at_ns() -> int:
        return draw.randint(0, HAPPENS_MS * MS)

    def step() -> int:
        return draw.randint(1, draw.choice((10, 40, 120)))

    kinds: list[tuple[float, Callable[[], Fault | Twist | Act]]] = [
        (0.4, lambda: Slow(step(), draw.choice((MS, 40 * MS, 2000 * MS)))),
        (0.4, lambda: OutOfMemory(step(), draw.choice((-1, draw.randint(0, 5))))),
        (0.4, lambda: Lost(step(), draw.choice(("before", "during", "after")), draw.choice((0, 0, 1, 2)))),
        (0.3, lambda: Jump(at_ns(), draw.choice((1, MS, 100 * MS, 60_000 * MS)))),
        (0.3, lambda: Stall(at_ns(), draw.randint(1, 200 * MS))),
        (0.2, lambda: Pin(at_ns(), draw.choice(visits).key, draw.random() < 0.7)),
        (0.2, lambda: _use_policy(draw, at_ns())),
        (0.2, lambda: Hold(at_ns(), draw.choice((1, 20 * MS, 400 * MS)))),
        (0.2, lambda: Reset(at_ns())),
    ]
    troubles: list[Any] = []
    for chance, make in kinds:
        while draw.random() < chance:
            troubles.append(make())
    last = draw.random()
    if last < 0.03:
        troubles.append(Raises(step()))
    elif last < 0.05:
        troubles.append(Jump(at_ns(), -draw.choice((1, MS, 500 * MS))))
    elif last < 0.07:
        troubles.append(Lost(step(), "before", 5))
    elif last < 0.13:
        troubles.append(Close(at_ns(), kill=draw.random() < 0.5))
    return troubles


def _use_policy(draw: Random, at_ns: int) -> UsePolicy:
    name = draw.choice(own("policies"))
    return UsePolicy(at_ns, name, options_of(name))
