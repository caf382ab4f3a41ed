"""The compiled build decides as pure Python does, byte for byte, and no compiled module outlives its source."""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from stepwell.benchmarks import compile as compiling
from stepwell.tests.architecture_rules import ROOT

COMPILER = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"no C compiler: {COMPILER!r} is not there")


def copy(target: Path) -> Path:
    """The sources, none of what was generated; the folder can be imported as ``stepwell`` from the one above."""
    left_out = shutil.ignore_patterns(".*", "*.so", "__pycache__", "*.egg-info", "build", "dist", "out")
    return Path(shutil.copytree(ROOT, target / "stepwell", ignore=left_out))


def python(tree: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python on a copy of the tree."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree.parent), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


# ------------------------------------------------------------------------------------------------ staleness


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree that looks compiled."""
    root = copy(tmp_path)
    files = [f"core/{name}{compiling.SUFFIX}" for name in ("hot__mypyc", "scheduler")]
    for file in files:
        (root / file).write_bytes(b"")
    compiling.note(root, files, compiling.digests(root))
    return root


def test_compiled_from_these_sources_is_left_alone(tree: Path) -> None:
    (tree / "sim" / "summary.py").write_text("# nothing that is compiled depends on it")
    assert compiling.wrong(tree) == ""
    assert compiling.check(tree)
    assert len(compiling.compiled_files(tree)) == 2


@pytest.mark.parametrize("name", ["core/scheduler.py", "core/events.py", "core/protocols.py", "sim/metrics.py"])
def test_an_edited_source_takes_the_compiled_modules_away(
    tree: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was compiled, or what that imports."""
    before = (tree / name).stat()
    with (tree / name).open("a") as file:
        file.write("# edited\n")
    os.utime(tree / name, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert compiling.wrong(tree) == f"{name} is not what it was when they were compiled"
    assert not compiling.check(tree)
    told = capsys.readouterr().err
    assert f"STALE: {name} is not what it was" in told
    assert "Removed 2 compiled modules" in told
    assert compiling.compiled_files(tree) == []
    assert not compiling.check(tree)
    assert capsys.readouterr().err == ""


def test_what_nobody_vouches_for_goes_too(tree: Path) -> None:
    lost = tree / "memory" / f"paged{compiling.SUFFIX}"
    lost.write_bytes(b"")
    assert compiling.wrong(tree) == f"{lost.relative_to(tree)} is not one of those compiled"
    lost.unlink()
    (tree / "core" / f"scheduler{compiling.SUFFIX}").unlink()
    assert compiling.wrong(tree) == f"core/scheduler{compiling.SUFFIX} is missing"
    compiling.stamp(tree).unlink()
    assert compiling.wrong(tree).startswith("nothing says what core/hot__mypyc")


def test_the_other_python_does_not_count(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "SUFFIX", ".cpython-399-other.so")
    assert "another Python" in compiling.wrong(tree)


def test_make_checks_before_it_runs_anything() -> None:
    for target in ("test", "test-all", "check", "bench", "demo"):
        shown = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        ran = [line for line in shown.splitlines() if line.startswith(".venv/bin/") and "pip install" not in line]
        assert ran[0] == ".venv/bin/python benchmarks/compile.py check", shown


def test_without_a_compiler_there_is_one_clear_line(tmp_path: Path) -> None:
    told = python(copy(tmp_path), "benchmarks/compile.py", "build", CC="no-such-compiler -O2")
    assert told.returncode == 1
    (line,) = told.stderr.splitlines()
    assert line.startswith("make compiled needs a C compiler, and 'no-such-compiler' is not there.")


def test_no_struct_is_compiled_whose_keywords_matter() -> None:
    """mypyc drops what stands beside the base class; without ``gc=False`` a struct only costs the collector more."""
    for name in compiling.MODULES:
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.ClassDef):
                assert {each.arg for each in node.keywords} <= {"gc"}, f"{name}: {node.name}"


# ------------------------------------------------------------------------------------------------ same decisions


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """What ``helpers.digests`` prints before and after compiling a copy."""
    root = copy(tmp_path_factory.mktemp("compiled"))
    pure = python(root, "-m", "stepwell.tests.helpers.digests")
    assert pure.returncode == 0, pure.stderr
    built = python(root, "benchmarks/compile.py", "build")
    assert built.returncode == 0, built.stdout + built.stderr
    assert "compiled already" in python(root, "benchmarks/compile.py", "build").stdout
    compiled = python(root, "-m", "stepwell.tests.helpers.digests")
    assert compiled.returncode == 0, compiled.stderr
    return pure.stdout.splitlines(), compiled.stdout.splitlines()


@pytest.mark.slow
@needs_compiler
def test_both_builds_decide_alike(told: tuple[list[str], list[str]]) -> None:
    pure, compiled = told
    assert (pure[0], compiled[0]) == ("pure", "compiled")
    assert compiled[1:] == pure[1:]


@pytest.mark.slow
@needs_compiler
def test_what_was_compared_is_worth_comparing(told: tuple[list[str], list[str]]) -> None:
    pure, _ = told
    assert len(pure) > 300
    for word in ("swap", "recompute", "failed", "cancelled", "repeat", "depth 1", "depth 2", "depth 3", "segments"):
        assert any(word in line.partition(" | ")[0] for line in pure), word
    raised = [line for line in pure if "Error" in line]
    assert len([line for line in raised if "PolicyError: " in line]) == 5
    assert len([line for line in raised if "InvariantError: " in line]) >= 8
