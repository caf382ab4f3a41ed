"""Stepwell serves language models, and studies how to schedule them, with one scheduler."""

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {"simulate": "stepwell.sim.run", "compare": "stepwell.sim.compare.run"}
"""Names for notebooks and programs, and where they are.  They are imported when asked for: whoever serves or only asks
for the version waits for no simulator.
"""


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'stepwell' has no attribute {name!r}; public are {', '.join(_PUBLIC)}")


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC]
