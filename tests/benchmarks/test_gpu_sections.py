"""The GPU script's sections at toy size on the processor, Triton's kernels in its interpreter."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `model`")
pytest.importorskip("triton", reason="needs the extra `cuda`")

from stepwell.benchmarks.gpu.lines import WORDS, Line
from stepwell.benchmarks.gpu.section import measure
from stepwell.benchmarks.gpu.sections import CPU, SECTIONS
from stepwell.benchmarks.gpu.targets import TARGETS, outcome

ROOT = Path(__file__).parents[2]
Measured = Callable[[str], list[Line]]


def measured(section: str) -> list[Line]:
    lines: list[Line] = []
    measure(section, 1000.0, lines.append)
    assert lines[0].note == CPU
    missing = [line.note for line in lines if line.value is None and line.unit != WORDS]
    assert missing == [], "something was not measured"
    return lines


def test_every_kernel_is_held_to_its_reference() -> None:
    lines = measured("correct")
    told = outcome(next(each for each in TARGETS if each.key == "correct"), lines)
    assert told.verdict == "pass", told
    assert len(lines) > 14


def test_recorded_decisions_of_six_policies_are_executed() -> None:
    lines = measured("journals")
    equal = {line.what.partition(":")[0]: line.value for line in lines if line.target == "decisions"}
    assert equal == dict.fromkeys(("fcfs", "swap", "chat-batch", "srpt", "vtc", "sarathi"), 100.0)
    assert len([line for line in lines if line.target == "steps"]) == 7
    assert lines[-1].value == 100.0  # the same tokens, whoever decides: in float32 nothing tips the balance


@pytest.mark.slow
@pytest.mark.parametrize("section", ["environment", "speed", "engine"])
def test_every_other_section_measures_all_it_names(section: str) -> None:
    assert len(measured(section)) > 4


@pytest.mark.slow
def test_the_whole_script_without_a_card(tmp_path: Path) -> None:
    out = tmp_path / "lines.jsonl"
    environment = {**os.environ, "WHEELS": str(tmp_path / "none")}
    ran = subprocess.run(
        ["bash", "benchmarks/gpu.sh", "--out", str(out)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "no GPU" in ran.stdout
    told = [json.loads(line) for line in out.read_text().splitlines()]
    verdicts = {each["target"]: each["verdict"] for each in told if each["section"] == "targets"}
    assert verdicts.pop("correct") == verdicts.pop("decisions") == "pass"
    assert set(verdicts.values()) == {"not measured"}
    assert {each["section"] for each in told} == {*(each.name for each in SECTIONS), "targets"}
