"""Every kernel that ships compiles for every target without a GPU, fits it, and is in the table of docs/cuda.md."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `model`")
pytest.importorskip("triton", reason="needs the extra `cuda`")

from stepwell.backends.kernels.ahead import TARGETS, operations, variants
from stepwell.tests.architecture_rules import ROOT
from stepwell.tests.helpers import kernel_table
from stepwell.tests.helpers.compiling import run

OPERATIONS = operations()
TOGETHER = [[op for op in OPERATIONS if (op == "attention") is apart] for apart in (True, False)]
"""Two processes, as many as there are cores where tests run; attention takes as long as all others."""


@pytest.mark.parametrize("ops", TOGETHER, ids="+".join)
def test_every_kernel_compiles_for_every_target(ops: list[str]) -> None:
    chosen = [word for op in ops for word in ("--op", op)]
    status, lines, complaints = run("-m", "stepwell.backends.kernels.ahead", "--json", *chosen)
    built: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert (status, complaints, [each for each in built if each["wrong"]]) == (0, "", [])
    named = {(each["op"], each["kernel"], each["label"], each["target"]) for each in built}
    assert named == {(op, it.name, it.label, target) for op in ops for it in variants(op) for target in TARGETS}
    assert all(0 < each["registers"] <= 255 for each in built)


def test_every_folder_with_kernels_is_found() -> None:
    folders = {path.parent.name for path in (ROOT / "backends" / "kernels").glob("*/triton.py")}
    assert set(OPERATIONS) == folders
    assert "sampling" in folders


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_kernel_that_is_launched_has_a_variant(op: str) -> None:
    """Launches look like ``kernel[grid](…)``."""
    source = (ROOT / "backends" / "kernels" / op / "triton.py").read_text()
    launched = set(re.findall(r"^\s*(\w+)\[[^\n]*\]\($", source, re.M)) | set(
        re.findall(r"^\s*(\w+)\[[^\n\]]*\]\(", source, re.M)
    )
    assert launched, op
    assert launched == {it.kernel.fn.__name__ for it in variants(op)}


def test_the_table_lists_what_ships() -> None:
    assert kernel_table.on_the_page() == kernel_table.expected()
