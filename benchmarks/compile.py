"""Compiles the hot path with mypyc, beside its sources: `make compiled`.  `make pure` undoes it.  ADR 7 says why.

    python benchmarks/compile.py build    compile, unless that was done already
    python benchmarks/compile.py check    remove what was compiled from other sources than these, and say so

Python prefers an extension module to a source of the same name, so a compiled module would go on to be imported after
its source was edited.  Hence `build` writes down a digest of everything it read, and whatever runs the code by `make`
begins with `check`.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

MODULES = [
    *("core/types.py", "core/kinds.py", "core/kv_answers.py", "core/policy_event.py"),
    *("core/request.py", "core/group.py", "core/speeds.py", "core/state.py", "core/view.py", "core/backlog.py"),
    *("core/forking.py", "core/intake.py", "core/plan_check.py", "core/draft.py", "core/applying.py", "core/runs.py"),
    *("core/scheduler.py", "core/journal_encoder.py", "policies/peak.py"),
    *("memory/duties.py", "memory/holders.py", "memory/host.py", "memory/pool.py", "memory/quarantine.py"),
    *("memory/tables.py", "memory/paged.py"),
    *("policies/line.py", "policies/aging.py", "policies/shares.py", "policies/victims.py", "policies/toolkit.py"),
    *("policies/running.py", "policies/leading.py", "policies/levels.py", "policies/tenant_line.py"),
    *("sim/mirror.py", "sim/loop.py", "sim/metrics.py", "sim/record_table.py", "sim/cost/linear.py"),
]
"""What is compiled.  No module that defines a msgspec struct: mypyc would drop the keywords of its class statement
(`frozen`, `array_like`, `tag`, …) without a word."""

GROUP = "stepwell.core.hot"
"""All compiled modules live in one library, so that they call each other directly; it is `core/hot__mypyc*.so`."""

SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))


def home(root: Path) -> Path:
    return root / ".cache" / "compiled"


def stamp(root: Path) -> Path:
    """What was compiled, and from what."""
    return home(root) / "built.json"


def compiled_files(root: Path) -> list[Path]:
    """Every extension module that lies among the sources, whoever left it there."""
    packages = [each for each in sorted(root.iterdir()) if (each / "__init__.py").is_file()]
    return [file for package in packages for file in sorted(package.rglob("*.so"))]


def digests(root: Path) -> dict[str, str]:
    """A digest of each source that the compiled code depends on: the modules, and what of ours they import."""
    found: dict[str, str] = {}
    left = list(MODULES)
    while left:
        name = left.pop()
        if name not in found and (root / name).is_file():
            source = (root / name).read_bytes()
            found[name] = hashlib.sha256(source).hexdigest()
            left += _imported(source)
    found["benchmarks/compile.py"] = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    return found


def _imported(source: bytes) -> list[str]:
    """What files of ours the import statements may mean."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return [f"{name[9:].replace('.', '/')}.py" for name in names if name.startswith("stepwell.")]


def wrong(root: Path) -> str:
    """Why the extension modules there should not be imported; empty if they may be, or if there are none."""
    there = [str(file.relative_to(root)) for file in compiled_files(root)]
    if not there:
        return ""
    try:
        built = json.loads(stamp(root).read_text(encoding="utf-8"))
        files, sources, suffix = built["files"], dict(built["sources"]), built["suffix"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"nothing says what {there[0]} was compiled from"
    if suffix != SUFFIX:
        return f"they were compiled for another Python ({suffix}, this is {SUFFIX})"
    if files != there:
        odd = sorted(set(files) ^ set(there))
        return f"{odd[0]} {'is missing' if odd[0] in files else 'is not one of those compiled'}"
    now = digests(root)
    changed = [name for name in sorted({*sources, *now}) if sources.get(name) != now.get(name)]
    return f"{changed[0]} is not what it was when they were compiled" if changed else ""


def note(root: Path, files: list[str], sources: dict[str, str]) -> None:
    """Write down for ``wrong`` what is compiled, and from what."""
    home(root).mkdir(parents=True, exist_ok=True)
    built = {"suffix": SUFFIX, "files": files, "sources": sources}
    stamp(root).write_text(json.dumps(built, indent=1) + "\n", encoding="utf-8")


def remove(root: Path) -> int:
    """Pure Python again; returns how many files that took."""
    files = compiled_files(root)
    for file in files:
        file.unlink()
    stamp(root).unlink(missing_ok=True)
    return len(files)


def check(root: Path) -> bool:
    """Remove compiled modules that do not belong to the sources, loudly.  True if compiled ones are left."""
    why = wrong(root)
    if why:
        count = remove(root)
        line = "*" * 100
        print(
            f"{line}\nSTALE: {why}.\nRemoved {count} compiled modules; from here on this is pure Python."
            f" `make compiled` compiles anew.\n{line}",
            file=sys.stderr,
        )
    return bool(compiled_files(root))


def build(root: Path) -> None:
    """Compile, and put the extension modules beside their sources; exits with one line if that is impossible."""
    if check(root):
        print("compiled already, and up to date")
        return
    _must_have_a_compiler()
    sources = digests(root)
    work = home(root)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    _compile(root, work)
    made = sorted((work / "lib").rglob(f"*{SUFFIX}"))
    places = [root / file.relative_to(work / "lib" / "stepwell") for file in made]
    files = sorted(str(place.relative_to(root)) for place in places)
    note(root, files, sources)
    for file, place in zip(made, places, strict=True):
        os.replace(file, place)
    _must_be_found(root)
    print(f"compiled {len(MODULES)} modules; `make pure` removes them")


def _must_have_a_compiler() -> None:
    without = "Everything works without, only slower."
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(command) is None:
        sys.exit(f"make compiled needs a C compiler, and {command!r} is not there. {without}")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        sys.exit(f"make compiled needs Python.h (Debian: python3-dev). {without}")
    done = subprocess.run([sys.executable, "-c", "import setuptools, mypyc"], capture_output=True, check=False)
    if done.returncode:
        sys.exit("make compiled needs mypy and setuptools: pip install -c constraints.txt -e '.[dev]'")


def _compile(root: Path, work: Path) -> None:
    """Into ``work / "lib"``, with the names that the modules have in the package."""
    from mypyc.build import mypycify  # not needed to check

    setuptools: Any = importlib.import_module("setuptools")  # has no types
    errors: Any = importlib.import_module("setuptools.errors")
    link = root / ".cache" / "typing" / "stepwell"
    if not link.exists():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path("..", ".."))
    os.chdir(link.parent)
    print(f"compiling {len(MODULES)} modules, which takes about a minute")
    extensions = mypycify([f"stepwell/{name}" for name in MODULES], group_name=GROUP, target_dir=str(work / "c"))
    command = setuptools.Distribution({"name": "stepwell", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(work / "lib"), str(work / "objects")
    command.ensure_finalized()
    try:
        command.run()
    except (errors.CompileError, errors.LinkError) as error:
        sys.exit(f"make compiled failed: {error}")


def _must_be_found(root: Path) -> None:
    """A fresh Python imports the compiled modules, and all of them load."""
    names = ["stepwell." + name.removesuffix(".py").replace("/", ".") for name in MODULES]
    program = f"import importlib\nfor each in {names}: print(importlib.import_module(each).__file__)"
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    here = [Path(line).resolve() for line in done.stdout.splitlines()]
    if done.returncode or any(not (file.is_relative_to(root) and file.name.endswith(SUFFIX)) for file in here):
        remove(root)
        sys.exit(f"make compiled: the compiled modules are not what Python imports\n{done.stdout}{done.stderr}")


def main(argv: list[str]) -> None:
    """``build`` or ``check``."""
    match argv:
        case ["build"]:
            build(ROOT)
        case ["check"]:
            if check(ROOT):
                print("the hot path is compiled (`make pure` undoes it)")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
