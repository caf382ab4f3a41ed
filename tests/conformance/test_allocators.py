"""Every registered allocator, the built-ins among them, keeps the contract of ``KVAllocator``."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from stepwell.core.protocols import KVAllocator
from stepwell.core.testing import allocator_machine

REGISTERED = sorted(entry_points(group="stepwell.allocators"), key=lambda entry: entry.name)
MODEST = settings(max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))


def test_the_built_in_allocators_are_registered() -> None:
    assert {"paged", "contiguous"} <= {entry.name for entry in REGISTERED}


@pytest.mark.parametrize("entry", REGISTERED, ids=lambda entry: entry.name)
def test_conforms(entry: EntryPoint) -> None:
    kind: Any = entry.load()

    def make(pages: int, page_size: int, host_pages: int) -> KVAllocator:
        made: KVAllocator = kind(kind.Options(), pages=pages, page_size=page_size, host_pages=host_pages)
        return made

    assert kind.name == entry.name
    run_state_machine_as_test(allocator_machine(make), settings=MODEST)
