"""The notebooks of examples/ run from their first cell to their last, and are stored without outputs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepwell.tests.architecture_rules import ROOT

FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NEEDED = ("nbclient", "ipykernel", "polars", "matplotlib")

RUN = """
import sys
import nbformat
from nbclient import NotebookClient
book = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": sys.argv[2]}}).execute()
nbformat.write(book, sys.argv[3])
"""
"""In a process of its own, as what Jupyter's machinery warns of is not ours to mend."""


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [each for each in found if each["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_without_outputs(notebook: Path) -> None:
    assert [each["outputs"] for each in cells(notebook)] == [[] for _ in cells(notebook)]
    assert {each["execution_count"] for each in cells(notebook)} == {None}


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED),
    reason="notebooks need the extras research and dev: pip install -e '.[dev]'",
)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_to_its_end(notebook: Path, tmp_path: Path) -> None:
    done = tmp_path / notebook.name
    ran = subprocess.run(
        [sys.executable, "-c", RUN, str(notebook), str(tmp_path), str(done)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    executed = cells(done)
    assert all(each["outputs"] for each in executed)
    assert not [output for each in executed for output in each["outputs"] if output["output_type"] == "error"]
    assert any("image/png" in output.get("data", {}) for each in executed for output in each["outputs"])


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["compare_policies", "first_simulation"]
