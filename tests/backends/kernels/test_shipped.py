"""Every kernel that ships compiles for every target without a GPU, fits it, and is in the table of docs/cuda.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `model`")
pytest.importorskip("triton", reason="needs the extra `cuda`")

from stepwell.backends.kernels.ahead import TARGETS, operations, variants
from stepwell.tests.architecture_rules import ROOT
from stepwell.tests.helpers import kernel_table
from stepwell.tests.helpers.compiling import run


def test_every_kernel_compiles_for_every_target() -> None:
    status, lines, complaints = run("-m", "stepwell.backends.kernels.ahead", "--json")
    built: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert (status, complaints, [each for each in built if each["wrong"]]) == (0, "", [])
    named = {(each["op"], each["kernel"], each["label"], each["target"]) for each in built}
    expected = {(op, it.name, it.label, target) for op in operations() for it in variants(op) for target in TARGETS}
    assert named == expected
    assert all(0 < each["registers"] <= 255 for each in built)


def test_every_kernel_has_a_variant() -> None:
    """Whoever writes a kernel and forgets it is told; private helpers of kernels are not launched and need none."""
    folders = {path.parent.name for path in (ROOT / "backends" / "kernels").glob("*/triton.py")}
    assert set(operations()) == folders
    for op in operations():
        source = (ROOT / "backends" / "kernels" / op / "triton.py").read_text()
        launched = {it.kernel.fn.__name__ for it in variants(op)}
        assert launched, op
        assert [name for name in launched if f"def {name}(" not in source] == []


def test_the_table_lists_what_ships() -> None:
    assert kernel_table.on_the_page() == kernel_table.expected()
