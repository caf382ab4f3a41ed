"""Makes a failing scenario smaller while it fails in the same way (delta debugging: Zeller and Hildebrandt, 2002)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from stepwell.tests.dst.run import failure_of
from stepwell.tests.dst.scenario import Scenario, Visit

Test = Callable[[Scenario], Exception | None]


def size(scenario: Scenario) -> str:
    """For people."""
    troubles = len(scenario.faults) + len(scenario.twists) + len(scenario.acts)
    return f"{len(scenario.visits)} visits and {troubles} troubles"


def alike(one: Exception, other: Exception | None) -> bool:
    """Whether two failures are of one kind: numbers and lists may differ, of the words the first few count."""
    return other is not None and _kind(one) == _kind(other)


def _kind(error: Exception) -> tuple[type, str]:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return type(error), " ".join(re.sub(r"[\d\[\]{}(),:']+|\b\w*=\S*", " ", str(error)).split()[:4])


def smallest(scenario: Scenario, failure: Exception, test: Test = failure_of) -> tuple[Scenario, Exception]:
    """The smallest scenario that was found to fail like ``failure``, and how it does."""
    best, error = scenario, failure
    changed = True
    while changed:
        changed = False
        for candidate in _smaller(best):
            found = test(candidate)
            if found is not None and alike(failure, found):
                best, error, changed = candidate, found, True
                break
    return best, error


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Smaller ones, those that save most first."""
    for field in ("faults", "twists", "acts", "visits"):
        for fewer in _without(getattr(scenario, field)):
            yield replace(scenario, **{field: fewer})
    for change in _SIMPLER_HOUSE:
        if any(getattr(scenario.house, field) != value for field, value in change.items()):
            yield replace(scenario, house=replace(scenario.house, **change))
    for place, visit in enumerate(scenario.visits):
        for simpler in _simpler(visit):
            yield replace(scenario, visits=[*scenario.visits[:place], simpler, *scenario.visits[place + 1 :]])


_SIMPLER_HOUSE: tuple[dict[str, Any], ...] = (
    {"policy": "fcfs", "options": {}},
    {"shadow": ""},
    {"allocator": "paged"},
    {"depth": 1},
    {"segment_turns": 0},
    {"process": False},
    {"instant": False},
    {"max_waiting": 100},
)


def _without(items: list[Any]) -> Iterator[list[Any]]:
    """The list less a half of it, less a quarter, down to less one."""
    width = len(items)
    while width:
        for start in range(0, len(items), width):
            yield items[:start] + items[start + width :]
        width //= 2


def _simpler(visit: Visit) -> Iterator[Visit]:
    plain = Visit(key=visit.key, at_ns=0, prompt=visit.prompt, length=visit.length, max_tokens=visit.max_tokens)
    for field in Visit.__struct_fields__:
        if field not in ("key", "prompt", "length", "max_tokens") and getattr(visit, field) != getattr(plain, field):
            yield replace(visit, **{field: getattr(plain, field)})
    for field in ("length", "max_tokens"):
        if getattr(visit, field) > 1:
            yield replace(visit, **{field: getattr(visit, field) // 2})
    if len(visit.prompt) > 1 and not visit.parent:
        yield replace(visit, prompt=visit.prompt[: len(visit.prompt) // 2])
