"""A safetensors file, its header compared with its size before a byte of a tensor is read."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import torch

from stepwell.backends.weights.source import bad_model

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_LONGEST_HEADER = 100_000_000


class _Entry(msgspec.Struct):
    """One tensor as the header has it."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class Stored(msgspec.Struct, frozen=True):
    """Where a tensor lies in a file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, Stored]:
    """Every tensor of the file.  Raises ``UserError`` where header and file do not agree."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _LONGEST_HEADER):
                raise bad_model(path, f"its header is said to have {length} bytes, the file has {size} (cut short?)")
            header = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
            header.pop("__metadata__", None)
            entries = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in header.items()}
    except OSError as error:
        raise bad_model(path, f"cannot be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_model(path, f"its header cannot be read: {error}") from None
    if entries:
        last = max(entries, key=lambda name: entries[name].data_offsets[1])
        needed = 8 + length + entries[last].data_offsets[1]
        if needed > size:
            raise bad_model(
                path, f"tensor {last!r} should end at byte {needed}, the file has {size} bytes (cut short?)"
            )
    return {name: _checked(path, name, entry, 8 + length) for name, entry in entries.items()}


def _checked(path: Path, name: str, entry: _Entry, base: int) -> Stored:
    start, end = entry.data_offsets
    if any(each < 0 for each in entry.shape) or not 0 <= start <= end:
        raise bad_model(path, f"tensor {name!r} has a negative size")
    dtype = _DTYPES.get(entry.dtype)
    if dtype is not None and math.prod(entry.shape) * dtype.itemsize != end - start:
        raise bad_model(
            path,
            f"tensor {name!r} {entry.shape} of {entry.dtype} needs {math.prod(entry.shape) * dtype.itemsize} bytes,"
            f" {end - start} are stored",
        )
    return Stored(path, entry.dtype, tuple(entry.shape), base + start, base + end)


def read_tensor(stored: Stored, name: str) -> torch.Tensor:
    """The tensor, in the type it is stored in."""
    dtype = _DTYPES.get(stored.dtype)
    if dtype is None:
        known = ", ".join(_DTYPES)
        raise bad_model(stored.path, f"tensor {name!r} has type {stored.dtype!r}; types that can be read: {known}")
    if stored.end == stored.start:
        return torch.zeros(stored.shape, dtype=dtype)
    with stored.path.open("rb") as file:
        file.seek(stored.start)
        raw = np.fromfile(file, np.uint8, stored.end - stored.start)
    if raw.size != stored.end - stored.start:
        raise bad_model(stored.path, f"tensor {name!r} was cut short while it was read")
    return torch.from_numpy(raw).view(dtype).reshape(stored.shape)
