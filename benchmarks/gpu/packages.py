"""What the script needs beside torch and Triton: fetched where there is a network, installed where there is none.

    python benchmarks/gpu/packages.py fetch FOLDER
    python benchmarks/gpu/packages.py install FOLDER SITE

Run as a file, as the package itself is only found once SITE holds a link to it.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

NEEDED = {
    "numpy": "numpy",
    "msgspec": "msgspec",
    "anyio": "anyio idna sniffio typing_extensions",
    "structlog": "structlog",
    "prometheus_client": "prometheus-client",
    "rich": "rich markdown-it-py mdurl pygments",
    "safetensors": "safetensors",
    "gguf": "gguf pyyaml tqdm",
    "tokenizers": "tokenizers huggingface-hub filelock fsspec packaging click httpx2 httpcore2 h11 truststore",
    "llguidance": "llguidance",
    "transformers": "transformers==5.24.0 regex typer shellingham",
}
"""By the module that is looked for: its distribution, and whatever that needs besides.  Of transformers that release
whose continuous batching ``theirs`` was tried with."""

PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_31_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64")
"""Of the machine with the card: any Linux of these years."""


def fetch(folder: Path) -> int:
    """Download every wheel for the machine with the card, none of which needs a compiler there."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = dict.fromkeys(name for names in NEEDED.values() for name in names.split())
    target = ["--python-version", "3.12", *(word for each in PLATFORMS for word in ("--platform", each))]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *target]
    pinned = ["--constraint", str(ROOT / "constraints.txt")]
    return subprocess.run([*pip, *pinned, "--dest", str(folder), *wanted], check=False).returncode


def install(folder: Path, site: Path) -> int:
    """Make the package importable, with its entry points, and add what is missing as far as the folder has it."""
    link(site)
    sys.path.insert(0, str(site))
    missing = [module for module in NEEDED if importlib.util.find_spec(module) is None]
    if folder.is_dir() and missing and not add(folder, site, missing):  # all at once, or else whatever there is
        for module in missing:
            add(folder, site, [module])
    importlib.invalidate_caches()
    still = [module for module in missing if importlib.util.find_spec(module) is None]
    if still:
        where = f"{folder} does not have them" if folder.is_dir() else f"there is no folder {folder} with wheels"
        print(f"missing: {', '.join(still)} ({where}); whatever needs them is not measured")
    return 0


def add(folder: Path, site: Path, modules: Sequence[str]) -> bool:
    """Whether the folder had all of them."""
    wanted = dict.fromkeys(name for module in modules for name in NEEDED[module].split())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade", "--no-compile"]
    where = ["--find-links", str(folder), "--target", str(site)]
    return subprocess.run([*pip, *where, *wanted], check=False, stderr=subprocess.DEVNULL).returncode == 0


def link(site: Path) -> None:
    """``stepwell`` is the folder that this file is in, whatever that is called."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    told = site / f"stepwell-{project['version']}.dist-info"
    told.mkdir(parents=True, exist_ok=True)
    package = site / "stepwell"
    package.unlink(missing_ok=True)
    package.symlink_to(ROOT)
    points = [line for group, names in project["entry-points"].items() for line in group_lines(group, names)]
    (told / "entry_points.txt").write_text("\n".join(points) + "\n")
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: stepwell\nVersion: {project['version']}\n")


def group_lines(group: str, names: dict[str, str]) -> list[str]:
    return [f"[{group}]", *(f"{name} = {target}" for name, target in names.items())]


if __name__ == "__main__":
    what, *paths = sys.argv[1:]
    places = [Path(each) for each in paths]
    sys.exit(fetch(places[0]) if what == "fetch" else install(places[0], places[1]))
