"""The header of a GGUF file, read with suspicion: nothing in it is believed before it was compared with its size.

Numbers are Python's, so that no product overflows; every count is bounded by the bytes that are left for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from stepwell.backends.weights.source import bad_model
from stepwell.core.errors import UserError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY, _UINT32 = 8, 9, 4
_DEEPEST = 4
_LONGEST_NAME = 1 << 16
_MOST_DIMENSIONS = 4


class GgufTensor(msgspec.Struct, frozen=True):
    """Where a tensor lies: ``shape`` has the slowest dimension first, ``start`` counts from the file's beginning."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    size: int


class GgufFile(msgspec.Struct, frozen=True):
    """A checked file: its metadata by key, its tensors by name, its bytes (mapped, not read)."""

    metadata: dict[str, object]
    tensors: dict[str, GgufTensor]
    data: np.ndarray[tuple[int], np.dtype[np.uint8]]


class _Reader:
    """A place in the file that never moves past its end."""

    def __init__(self, path: Path, data: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
        self.path = path
        self.bytes = data.data
        self.at = 0

    def wrong(self, message: str) -> UserError:
        return bad_model(self.path, f"not a usable GGUF file: {message} (at byte {self.at})")

    def left(self) -> int:
        return len(self.bytes) - self.at

    def take(self, count: int, what: str) -> memoryview:
        if count > self.left():
            raise self.wrong(f"it ends inside {what}: {count} bytes expected, {self.left()} left")
        self.at += count
        return self.bytes[self.at - count : self.at]

    def number(self, code: str, what: str) -> int:
        value: int = struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]
        return value

    def string(self, what: str, longest: int | None = None) -> str:
        length = self.number("Q", what)
        if longest is not None and length > longest:
            raise self.wrong(f"{what} is said to have {length} bytes")
        return bytes(self.take(length, what)).decode("utf-8", errors="surrogateescape")

    def value(self, kind: int, what: str, depth: int = 0) -> object:
        if kind in _SCALARS:
            return struct.unpack("<" + _SCALARS[kind], self.take(struct.calcsize("<" + _SCALARS[kind]), what))[0]
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self.array(what, depth + 1)
        raise self.wrong(f"{what} has unknown type {kind}")

    def array(self, what: str, depth: int) -> list[object]:
        if depth > _DEEPEST:
            raise self.wrong(f"{what} is nested more than {_DEEPEST} deep")
        kind, count = self.number("I", what), self.number("Q", what)
        if kind in _SCALARS:
            size = struct.calcsize("<" + _SCALARS[kind])
            return list(struct.unpack(f"<{count}{_SCALARS[kind]}", self._bounded(count, size, what)))
        smallest = {_STRING: 8, _ARRAY: 12}.get(kind)
        if smallest is None:
            raise self.wrong(f"{what} is an array of unknown type {kind}")
        if count * smallest > self.left():
            raise self.wrong(f"{what} is said to have {count} elements, which the file cannot hold")
        return [self.value(kind, what, depth) for _ in range(count)]

    def _bounded(self, count: int, size: int, what: str) -> memoryview:
        if count * size > self.left():
            raise self.wrong(f"{what} is said to have {count} elements, which the file cannot hold")
        return self.take(count * size, what)


def read_gguf(path: Path) -> GgufFile:
    """Map ``path`` and check everything its header says.  Raises ``UserError``."""
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise bad_model(path, f"cannot be read: {error}") from None
    reader = _Reader(path, data)
    if bytes(reader.take(4, "the magic number")) != b"GGUF":
        raise reader.wrong("it does not begin with GGUF")
    version = reader.number("I", "the version")
    if version not in (2, 3):
        raise reader.wrong(f"version {version} is not known (2 and 3 are; big-endian files are not)")
    tensors, pairs = reader.number("Q", "the tensor count"), reader.number("Q", "the metadata count")
    if tensors * 24 + pairs * 13 > reader.left():
        raise reader.wrong(f"{tensors} tensors and {pairs} metadata entries are more than it can hold")
    metadata = _metadata(reader, pairs)
    return GgufFile(metadata, _tensors(reader, tensors, _alignment(reader, metadata)), data)


def _metadata(reader: _Reader, count: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for _ in range(count):
        key = reader.string("a metadata key", _LONGEST_NAME)
        if not key or key in metadata:
            raise reader.wrong(f"metadata key {key!r} comes twice" if key else "a metadata key is empty")
        kind = reader.number("I", f"the type of {key!r}")
        if key == "general.alignment" and kind != _UINT32:
            raise reader.wrong(f"general.alignment must be a 32-bit number, it has type {kind}")
        metadata[key] = reader.value(kind, f"metadata {key!r}")
    return metadata


def _alignment(reader: _Reader, metadata: dict[str, object]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise reader.wrong(f"general.alignment must be a power of two, it is {alignment!r}")
    return alignment


def _tensors(reader: _Reader, count: int, alignment: int) -> dict[str, GgufTensor]:
    rows = [_tensor_row(reader, alignment) for _ in range(count)]
    data_start = reader.at + -reader.at % alignment
    tensors: dict[str, GgufTensor] = {}
    end = data_start
    for name, shape, kind, offset, size in sorted(rows, key=_offset):
        start = data_start + offset
        if start + size > len(reader.bytes):
            raise reader.wrong(
                f"tensor {name!r} takes {size} bytes at offset {start}, the file has {len(reader.bytes)} (cut short?)"
            )
        if start < end:
            raise reader.wrong(f"tensor {name!r} overlaps the one before it")
        if name in tensors:
            raise reader.wrong(f"tensor {name!r} comes twice")
        tensors[name] = GgufTensor(name, shape, kind, start, size)
        end = start + size
    return tensors


_Row = tuple[str, tuple[int, ...], GGMLQuantizationType, int, int]
_offset: Callable[[_Row], int] = lambda row: row[3]  # noqa: E731


def _tensor_row(reader: _Reader, alignment: int) -> _Row:
    name = reader.string("a tensor's name", _LONGEST_NAME)
    dimensions = reader.number("I", f"the dimensions of {name!r}")
    if dimensions > _MOST_DIMENSIONS:
        raise reader.wrong(f"tensor {name!r} is said to have {dimensions} dimensions, at most {_MOST_DIMENSIONS} exist")
    shape = tuple(reader.number("Q", f"the shape of {name!r}") for _ in range(dimensions))
    number, offset = reader.number("I", f"the type of {name!r}"), reader.number("Q", f"the offset of {name!r}")
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise reader.wrong(f"tensor {name!r} has unknown type {number}") from None
    if kind not in GGML_QUANT_SIZES:
        raise reader.wrong(f"tensor {name!r} has a type of unknown size: {kind.name}")
    block, block_bytes = GGML_QUANT_SIZES[kind]
    elements = 1
    for size in shape:
        elements *= size
    if 0 in shape:
        raise reader.wrong(f"tensor {name!r} has an empty dimension: {list(shape)}")
    if shape and shape[0] % block:
        raise reader.wrong(f"tensor {name!r} has rows of {shape[0]}, no multiple of the block of {kind.name}, {block}")
    if offset % alignment:
        raise reader.wrong(f"tensor {name!r} lies at {offset}, which is not aligned to {alignment}")
    return name, shape[::-1], kind, offset, -(-elements // block) * block_bytes
