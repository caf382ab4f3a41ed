"""Says which build is tested, and tests none that was compiled from other sources than these.

Where there is no GPU, Triton's kernels are interpreted on tensors of the processor.
"""

from __future__ import annotations

import gc
import os
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

from stepwell.benchmarks.compile import ROOT, wrong
from stepwell.core.build_kind import build_kind

if find_spec("triton") is not None:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # is read when a kernel is defined, so before anything imports one

settings.register_profile("shared machine", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")  # on a busy one, making a value may take any time

PURE_ONLY = (
    "tests/cases/test_scheduler_cases.py::test_sc_5",
    "tests/core/test_engine_trouble.py::test_when_a_law_is_broken_everybody_is_told",
    "tests/core/test_engine_trouble.py::test_a_broken_law_breaks_the_replay_at_the_same_place",
    "tests/dst/test_planted_bugs.py",
)
"""They replace methods of the core, or count its lines."""


def pytest_configure() -> None:
    why = wrong(ROOT)
    if why:
        pytest.exit(f"the compiled modules are stale: {why}. Go on with `make compiled`, or `make pure`.", 2)


def pytest_report_header() -> str:
    return f"stepwell: {build_kind()} core"


def pytest_collection_finish() -> None:
    _leave_alone()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path != item.path:
        _leave_alone()


def _leave_alone() -> None:
    """What is there now: the search for cycles need not look at modules and caches again and again, with all of which
    it takes seconds.  And what a test left open is told while that one's file is run, not in another."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if build_kind() == "compiled":
        for item in items:
            if item.nodeid.startswith(PURE_ONLY):
                item.add_marker(pytest.mark.skip(reason="replaces or counts Python code of the core: make pure"))
