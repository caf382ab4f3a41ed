"""What the engine logs of thousands of faults is not written: most of the time would go into its tracebacks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from stepwell.tests.dst.run import drop


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(processors=[drop])
    yield
    structlog.configure(**before)
