"""Which build this is: pure Python, or its hot path compiled (`make compiled`).  Both decide alike, byte for byte."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from typing import Literal

BuildKind = Literal["pure", "compiled"]


def build_kind() -> BuildKind:
    """What ``import`` finds, without importing it."""
    spec = importlib.util.find_spec("stepwell.core.scheduler")
    origin = (spec.origin if spec is not None else None) or ""
    return "compiled" if origin.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)) else "pure"
