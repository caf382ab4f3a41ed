"""What the script finds, one line a figure: plain dataclasses, as whoever collects them may have nothing installed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

WORDS = "words"
"""The unit of a line that says something instead."""


@dataclass(frozen=True)
class Line:
    """One figure.  ``target``: the key of the target that it is held to; ``value`` None: not measured, ``note`` says
    why."""

    section: str
    what: str
    value: float | None = None
    unit: str = ""
    target: str = ""
    note: str = ""
    more: dict[str, object] = field(default_factory=dict)

    def told(self) -> str:
        """For a person."""
        if self.unit == WORDS:
            return self.note
        value = "not measured" if self.value is None else f"{shown(self.value)} {self.unit}".rstrip()
        return f"{value}  ({self.note})" if self.note else value


def shown(value: float) -> str:
    """Three figures, or all before the point."""
    if value != 0 and abs(value) < 0.01:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def said(section: str, what: str, words: str) -> Line:
    return Line(section, what, unit=WORDS, note=words)


def not_measured(section: str, what: str, why: str, target: str = "") -> Line:
    return Line(section, what, target=target, note=why)


def encode(line: Line) -> str:
    """One JSON object; what ``more`` holds stands beside the rest."""
    told = asdict(line)
    more = told.pop("more")
    return json.dumps({"bench": "gpu", **{key: each for key, each in told.items() if each != ""}, **more})


def decode(text: str) -> Line:
    told = json.loads(text)
    del told["bench"]
    section, what, value = (told.pop(key) for key in ("section", "what", "value"))
    unit, target, note = (told.pop(key, "") for key in ("unit", "target", "note"))
    return Line(section, what, value, unit, target, note, told)


def read(path: Path) -> Iterator[Line]:
    """Whole lines only: whoever wrote them may have been ended in the middle of one."""
    if path.exists():
        for text in path.read_text().splitlines(keepends=True):
            if text.endswith("\n"):
                yield decode(text)


def write(path: Path, lines: Iterable[Line]) -> None:
    with path.open("a") as file:
        for line in lines:
            file.write(encode(line) + "\n")
            file.flush()
