"""Which values of a parameter the quick run tries; the others are for the slow one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest


def quick_for(values: Iterable[Any], chosen: Callable[[Any], bool]) -> list[Any]:
    """The values of one parameter, slow but for those that are ``chosen``."""
    return [each if chosen(each) else pytest.param(each, marks=pytest.mark.slow) for each in values]


def diagonal(*axes: Iterable[Any]) -> list[Any]:
    """The values of several parameters: every combination, slow but for as many as the longest axis has values.

    Between them those have every value of every axis.
    """
    listed = [list(axis) for axis in axes]
    places = range(max(map(len, listed)))
    quick = {tuple(place % len(axis) for axis in listed) for place in places}
    every = product(*(range(len(axis)) for axis in listed))
    return [
        pytest.param(
            *(axis[place] for axis, place in zip(listed, each, strict=True)),
            marks=() if each in quick else pytest.mark.slow,
        )
        for each in every
    ]
