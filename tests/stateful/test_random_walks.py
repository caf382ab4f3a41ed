"""Longer lives than hypothesis plays, from fixed seeds.

A failure prints the command that repeats it: ``python -m stepwell.tests.stateful.test_random_walks SEED TURNS``.
"""

from __future__ import annotations

import sys

import pytest

from stepwell.tests.stateful.walk import setup_of, walk

TURNS = 120
QUICK = 120
"""Every policy, allocator and depth four times."""
MANY = 3000


def run(seed: int, turns: int) -> None:
    try:
        walk(seed, turns)
    except Exception as error:
        error.add_note(
            f"{setup_of(seed)}\nrepeat with: python -m stepwell.tests.stateful.test_random_walks {seed} {turns}"
        )
        raise


@pytest.mark.parametrize("first", range(0, QUICK, 30))
def test_random_walks(first: int) -> None:
    for seed in range(first, first + 30):
        run(seed, TURNS)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(QUICK, MANY, 60))
def test_many_random_walks(first: int) -> None:
    for seed in range(first, first + 60):
        run(seed, 2 * TURNS)


def test_the_same_seed_takes_the_same_walk() -> None:
    first, second = walk(7, TURNS), walk(7, TURNS)
    assert (first.now_ns, first.device.rows) == (second.now_ns, second.device.rows)


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else TURNS)
