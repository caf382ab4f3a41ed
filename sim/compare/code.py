"""What code a run depends on, as a digest: a kept result counts only as long as nothing of it has changed."""

from __future__ import annotations

import hashlib
import inspect
from functools import cache
from pathlib import Path

import stepwell
from stepwell.core.config import Config
from stepwell.core.registry import load

_ROOT = Path(stepwell.__file__).parent
_ROOMS = ("core", "policies", "memory", "sim")


@cache
def code_digest() -> str:
    """Of Stepwell's own sources, as far as they decide a simulation."""
    seen = hashlib.sha256(stepwell.__version__.encode())
    for room in _ROOMS:
        for path in sorted((_ROOT / room).rglob("*.py")):
            seen.update(f"\0{path.relative_to(_ROOT)}\0".encode() + path.read_bytes())
    return seen.hexdigest()


def plugin_digest(config: Config) -> str:
    """Of the source files of a configuration's plugins that are not Stepwell's; what those import is not looked at."""
    policy = load("policies", config.scheduler.policy)
    classes = [policy, load("allocators", config.memory.allocator), load("cost_models", config.cost.model)]
    for part, group in getattr(policy, "parts", {}).items():
        name = config.scheduler.options.get(part)
        classes += [load(group, name)] if isinstance(name, str) else []
    seen = hashlib.sha256()
    for each in classes:
        path = _source(each)
        if path is not None and _ROOT not in path.parents:
            seen.update(f"{each.__qualname__}\0".encode() + path.read_bytes())
    return seen.hexdigest()


def _source(plugin: type) -> Path | None:
    try:
        return Path(inspect.getfile(plugin))
    except (TypeError, OSError):
        return None
