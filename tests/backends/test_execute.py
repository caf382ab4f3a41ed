"""Recorded plans on the backend ``torch``: a tiny model takes a crowded run, and what does not fit is said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `model`")

from stepwell.core.events import Event  # noqa: E402
from stepwell.core.instructions import Instruction, Preempted  # noqa: E402
from stepwell.sim.cost.linear import Linear  # noqa: E402
from stepwell.sim.execute import execute  # noqa: E402
from stepwell.tests.backends.driving import make  # noqa: E402
from stepwell.tests.backends.tiny import SHAPE, write_folder, write_gguf  # noqa: E402
from stepwell.tests.cli.hand import call, scenario  # noqa: E402
from stepwell.tests.core.journals import record  # noqa: E402
from stepwell.tests.core.shells import fixed_case  # noqa: E402
from stepwell.tests.helpers.small_model import needs_small_model  # noqa: E402


@pytest.mark.parametrize(("seed", "policy"), [(3, "swap"), (4, "swap"), (8, "fcfs"), (9, "chat-batch")])
def test_a_crowded_run_is_executed(seed: int, policy: str, tmp_path: Path) -> None:
    """Swaps, recomputes and failed steps are in it; a wrong position or page would end in an error."""
    case, path = fixed_case(seed, policy, "paged"), tmp_path / "run.jsonl"
    preempted: list[str] = []

    def watch(writer: object, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        preempted.extend(each.mode for each in out if isinstance(each, Preempted))

    record(case, path, beside=[watch])
    assert preempted
    memory = case.config().memory
    backend = make(
        write_gguf(tmp_path / "model.gguf"),
        pages=memory.pages,
        page_size=memory.page_size,
        host_pages=memory.host_pages,
    )
    times = execute(path, backend, Linear(case.cost), vocabulary=SHAPE.vocab_size)
    assert len(times.steps) > 20
    assert all(each.measured_ns > 0 for each in times.steps)
    assert [each.predicted_ns for each in times.steps] == [each.recorded_ns for each in times.steps]
    assert not backend._rows


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path = write_folder(tmp_path / "model"), tmp_path / "run.jsonl"
    assert call(capsys, "sim", scenario(tmp_path), "--journal", path)[0] == 0
    how = ("--backend", "torch", "--model", model, "--dtype", "float32", "--threads", "1")
    status, out, err = call(capsys, "replay", path, *how, "--json")
    assert (status, err) == (0, "")
    assert msgspec.json.decode(out.splitlines()[-1])["steps"] == 28
    huge = ("--set", "memory.pages=100000", "--set", "memory.page_size=65536")
    assert call(capsys, "sim", scenario(tmp_path), *huge, "--limit", "1", "--journal", path)[0] == 0
    status, _, err = call(capsys, "replay", path, *how)
    assert status == 2
    assert "100000 pages" in err
    assert "pages would fit" in err


@pytest.mark.slow
def test_the_small_real_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_small_model()
    path = tmp_path / "run.jsonl"
    small = ("memory.pages=256", "memory.host_pages=64", "scheduler.token_budget=256")
    settings = [word for each in small for word in ("--set", each)]
    assert call(capsys, "sim", "--policy", "swap", "--limit", "12", *settings, "--journal", path)[0] == 0
    status, out, err = call(capsys, "replay", path, "--backend", "torch", "--limit", "12")
    assert (status, err) == (0, "")
    assert out.splitlines()[-1].startswith("12 steps: measured")
