"""A wheel built from a copy of the tree holds the code and nothing else, imports elsewhere, and finds its plugins."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from stepwell.tests import architecture_rules as rules
from stepwell.tests.architecture_rules import OUTSIDE, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def code() -> set[str]:
    """Every source file of the package, as the wheel names it."""
    inside = (path.relative_to(ROOT) for path in rules.sources())
    return {f"stepwell/{path}" for path in inside if path.parts[0] not in OUTSIDE}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_constraints_pin_everything_that_is_asked_for() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+-]+", line)] == []
    pinned = {normal(line.partition("==")[0]) for line in lines}
    project = PROJECT["project"]
    asked = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    wanted = {normal(re.split(r"[\[<>=!~; ]", each)[0]) for each in asked} - {"stepwell"}
    assert wanted - pinned == set()


def test_versions_agree() -> None:
    import stepwell  # lazy: the package as this test sees it

    assert stepwell.__version__ == PROJECT["project"]["version"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel.  Built from a copy, as building writes into the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "a checkout"
    for name in code():
        target = tree / name.removeprefix("stepwell/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name.removeprefix("stepwell/"), target)
    for name in ("pyproject.toml", "LICENSE", "README.md", "py.typed"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tree / name)
    (tree / "tests").mkdir()
    (tree / "tests" / "test_x.py").write_text("raise SystemExit\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", folder, tree], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.mark.slow
def test_wheel_holds_the_code_and_nothing_else(site: Path) -> None:
    held = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    ours = {name for name in held if not name.split("/")[0].endswith(".dist-info")}
    assert ours == code() | {"stepwell/py.typed"}
    assert [name for name in held if name.endswith("LICENSE")]


@pytest.mark.slow
def test_wheel_imports_and_finds_its_plugins(site: Path) -> None:
    program = """
import importlib, pkgutil, sys
site = sys.argv[1]
sys.path.insert(0, site)
import stepwell
assert stepwell.__file__.startswith(site), stepwell.__file__
for each in pkgutil.walk_packages(stepwell.__path__, "stepwell."):
    if not each.name.endswith("__main__") and "testing" not in each.name:
        importlib.import_module(each.name)
from stepwell.core.catalogue import catalogue
for group in ("policies", "allocators", "cost_models", "backends"):
    listed = catalogue(group)
    assert listed, group
    assert not [each for each in listed if each.error], listed
"""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(site)], cwd=site, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
