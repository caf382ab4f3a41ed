"""What several tests of the simulator look at and none changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.sim import report
from stepwell.sim.compare.result import Comparison
from stepwell.sim.compare.run import compare


@pytest.fixture(scope="session")
def comparison() -> Comparison:
    """Two policies, two loads, two seeds, knees; small requests in a small house."""
    settings = ["workload.limit=80", "memory.pages=1500", "scheduler.max_context=2048"]
    return compare(
        policies=["fcfs", "chat-batch"], loads=[0.6, 1.2], seeds=2, jobs=1, slo_share=0.9, overrides=settings
    )


@pytest.fixture(scope="session")
def written(comparison: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its report."""
    folder = tmp_path_factory.mktemp("report")
    assert report.write(comparison, folder) == folder / "report.html"
    return folder
