"""ServeGen's clients: not requests but what they were drawn like, so a workload is drawn from them, with a seed.

A client is two files.  ``…trace.csv`` has no header and a line for each window of 600 s: its start (s), requests a
second, coefficient of variation, the pattern of the gaps (``Gamma``, ``Weibull``, or nothing: exponential), and shape
and scale of that.  ``…dataset.json`` beside it has, for each six hours, how often a prompt and an answer had so many
tokens: Python dictionaries written in JSON strings.

- A window gets exactly ``rate × 600`` requests, rounded to whole ones: as many as were counted in it.
- Their gaps are drawn in the pattern's shape and stretched to fill the window.  The scale is not used: it is that of
  the seconds in which the client was busy, and does not agree with the window's rate.
- Prompt and answer are drawn independently, as ServeGen does.  ``reason_ratio`` (the share of an answer that is
  reasoning) is told in a note: the answer's length has it all.
"""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_S
from stepwell.sim.workload import draws
from stepwell.sim.workload.reading import Format, Intake, Reading, numbered_lines
from stepwell.sim.workload.request import RowReport, TraceRequest, Workload
from stepwell.sim.workload.rows import MOST_TOKENS, RowError, fields, shown

WINDOW_S = 600
COLUMNS = ("start", "rate", "cv", "pattern", "shape", "scale")
MOST_REQUESTS = 20_000_000
_DATASET_BYTES = 1 << 26
_PDF_LETTERS = 1 << 22
_PDF_DEPTH = 1
_GAPS, _PROMPT, _OUTPUT = 60, 70, 71
"""Purposes of draws (``draws.uniforms``); a window's gaps take its number as the seed's second word."""


class ServeGenOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``dataset``: the file of lengths, if it is not beside the windows and named like them."""

    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0
    dataset: str = ""


class _Window(msgspec.Struct):
    start_ns: int
    count: int
    pattern: str
    shape: float


class _Pdf(msgspec.Struct):
    """Values and the running sum of their weights."""

    values: list[float]
    reached: list[float]

    def of(self, u: float) -> float:
        """The value that a number strictly between 0 and 1 stands for."""
        return self.values[bisect_right(self.reached, u * self.reached[-1], hi=len(self.values) - 1)]

    @property
    def mean(self) -> float:
        weights = [b - a for a, b in zip([0.0, *self.reached], self.reached, strict=False)]
        return sum(value * weight for value, weight in zip(self.values, weights, strict=True)) / self.reached[-1]


_Lengths = list[tuple[int, dict[str, _Pdf]]]
"""Start of each six hours (s), and its distributions by name."""


def _read(path: Path, format: Format, reading: Reading) -> Workload:
    options: ServeGenOptions = reading.options
    windows, report = _windows(path, format, reading)
    lengths = _dataset(_beside(path, options.dataset))
    total = 0
    requests: list[TraceRequest] = []
    reasons: list[float] = []
    for window in windows:
        if not window.count or (reading.limit is not None and total >= reading.limit):
            continue
        total += window.count
        if total > MOST_REQUESTS:
            raise UserError(f"{path}: more than {MOST_REQUESTS} requests; give a limit", field="limit")
        pdfs = _at(lengths, window.start_ns, path)
        requests += _drawn(window, pdfs, options.seed)
        if "reason_ratio" in pdfs:
            reasons.append(pdfs["reason_ratio"].mean)
    if not requests:
        raise UserError(f"{path}: no window has a request", field="trace")
    notes = [f"drawn with seed {options.seed} from {sum(bool(each.count) for each in windows)} windows of {WINDOW_S} s"]
    if reasons:
        notes.append(f"on average {100 * sum(reasons) / len(reasons):.0f} % of an answer is reasoning")
    return Workload(path.stem, requests, report=report, notes=notes)


def _windows(path: Path, format: Format, reading: Reading) -> tuple[list[_Window], RowReport]:
    intake = Intake(path, reading.skip_bad)
    windows: list[_Window] = []
    with path.open("rb") as file:
        for number, line in numbered_lines(path, file):
            try:
                windows.append(_window(line))
            except RowError as error:
                intake.refuse(number, error)
    report = intake.report(format)
    rows = report.rows + len(windows)
    return windows, msgspec.structs.replace(report, rows=rows, used=len(windows))


def _window(line: str) -> _Window:
    start, rate, _, pattern, shape, _ = (part.strip() for part in fields(line, len(COLUMNS)))
    start_s, per_s = _number(start, "start", 1e9), _number(rate, "rate", 1e6)
    if pattern not in ("", "Gamma", "Weibull"):
        raise RowError(f"pattern must be Gamma, Weibull or nothing, not {shown(pattern)}")
    form = _number(shape, "shape", 1e6) if pattern else 1.0
    if pattern and form < 0.05:
        raise RowError(f"shape must be at least 0.05, not {shown(shape)}")
    return _Window(round(start_s * NS_PER_S), round(per_s * WINDOW_S), pattern, form)


def _number(text: str, column: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise RowError(f"{column} must be a number, not {shown(text)}") from None
    if not 0 <= value <= most:
        raise RowError(f"{column} must be between 0 and {most:g}, not {shown(text)}")
    return value


def _beside(path: Path, name: str) -> Path:
    if name:
        return path.with_name(name)
    if not path.name.endswith("trace.csv"):
        raise UserError(f"{path}: name its lengths (…dataset.json), as it is not called …trace.csv", field="dataset")
    return path.with_name(path.name.removesuffix("trace.csv") + "dataset.json")


def _dataset(path: Path) -> _Lengths:
    try:
        if path.stat().st_size > _DATASET_BYTES:
            raise UserError(f"{path}: more than {_DATASET_BYTES} bytes", field="dataset")
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, str]])
        lengths = [
            (int(start), {name: _pdf(text, f"{path}, window {start}, {name}") for name, text in pdfs.items()})
            for start, pdfs in found.items()
        ]
    except (msgspec.DecodeError, ValueError) as error:
        raise UserError(f"{path}: not a ServeGen dataset: {error}", field="dataset") from None
    return sorted(lengths, key=lambda each: each[0])


def _pdf(text: str, where: str) -> _Pdf:
    """A Python dictionary of numbers, read as data: nothing in it is ever executed."""
    if len(text) > _PDF_LETTERS or text.count("{") > _PDF_DEPTH or text.count("(") or text.count("["):
        raise UserError(f"{where}: must be one flat dictionary of at most {_PDF_LETTERS} letters", field="dataset")
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise UserError(f"{where}: not a dictionary of numbers: {error}", field="dataset") from None
    numbers = isinstance(found, dict) and all(
        type(each) in (int, float) and 0 <= each <= MOST_TOKENS for pair in found.items() for each in pair
    )
    if not numbers:
        raise UserError(f"{where}: must be a dictionary of numbers from 0 to {MOST_TOKENS}", field="dataset")
    pairs = sorted((float(value), float(weight)) for value, weight in found.items() if weight > 0)
    return _Pdf([value for value, _ in pairs], list(accumulate(weight for _, weight in pairs)))


def _at(lengths: _Lengths, start_ns: int, path: Path) -> dict[str, _Pdf]:
    at = bisect_right(lengths, start_ns // NS_PER_S, key=lambda each: each[0]) - 1
    pdfs = lengths[at][1] if at >= 0 else {}
    for name in ("input_tokens", "output_tokens"):
        if name not in pdfs or not pdfs[name].values:
            raise UserError(f"{path}: requests at {start_ns // NS_PER_S} s, but no {name} then", field="dataset")
    return {name: pdf for name, pdf in pdfs.items() if pdf.values}


def _drawn(window: _Window, pdfs: dict[str, _Pdf], seed: int) -> list[TraceRequest]:
    count, own = window.count, seed ^ (window.start_ns // NS_PER_S << 20)
    gaps = _gaps(window, own, count + 1)
    reached = np.cumsum(gaps)
    times = window.start_ns + np.floor(reached[:-1] / reached[-1] * (WINDOW_S * NS_PER_S)).astype(np.int64)
    prompts = draws.uniforms(own, _PROMPT, count).tolist()
    outputs = draws.uniforms(own, _OUTPUT, count).tolist()
    return [
        TraceRequest(at, max(round(pdfs["input_tokens"].of(u)), 1), max(round(pdfs["output_tokens"].of(v)), 1))
        for at, u, v in zip(times.tolist(), prompts, outputs, strict=True)
    ]


def _gaps(window: _Window, seed: int, count: int) -> draws.Floats:
    """Gaps of the window's shape, in a unit of their own."""
    if window.pattern == "Gamma":
        return draws.gammas(seed, _GAPS, count, window.shape)
    gaps = draws.exponentials(draws.uniforms(seed, _GAPS, count))
    return draws.exp(draws.log(gaps) / window.shape) if window.pattern == "Weibull" else gaps


def _recognises(first: str) -> bool:
    parts: Sequence[str] = [part.strip() for part in first.split(",")]
    return len(parts) == len(COLUMNS) and parts[3] in ("", "Gamma", "Weibull") and parts[0].replace(".", "").isdigit()


SERVEGEN = Format(
    "servegen", "0,0.5,1.2,Gamma,0.7,0.03 (…trace.csv, …dataset.json)", _recognises, _read, ServeGenOptions
)
