"""The measurement of the host's part in a step: that it measures what it says; never how much."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")

from stepwell.cli.bench_host import measure_host_path


def test_every_full_step_is_measured_with_its_parts() -> None:
    found = measure_host_path(streams=8, steps=30)
    assert found.streams == 8
    assert found.steps >= 30
    assert 0 < found.scheduling_us < found.p50_us <= found.p99_us
    assert 0 < found.delivery_us < found.p50_us < found.connected_p50_us
    assert found.tokenizer in ("smollm2", "bytes")
