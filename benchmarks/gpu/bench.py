"""What every section is given: the device, the sizes, whom to tell, and how much time it has left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from stepwell.benchmarks.gpu.lines import Line, not_measured
from stepwell.benchmarks.gpu.scale import CARD, NO_CARD, Scale
from stepwell.benchmarks.gpu.stopwatch import Stopwatch


class OutOfTimeError(Exception):
    """The section's time is up."""

    def __init__(self) -> None:
        super().__init__("no time was left")


@dataclass(frozen=True)
class Bench:
    """One section's surroundings."""

    section: str
    device: torch.device
    scale: Scale
    stopwatch: Stopwatch
    tell: Callable[[Line], None]
    until_s: float
    """By ``time.monotonic``."""

    @property
    def card(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        found = getattr(torch, self.scale.dtype)
        assert isinstance(found, torch.dtype)
        return found

    def check(self) -> None:
        """Raises ``OutOfTimeError``."""
        if time.monotonic() > self.until_s:
            raise OutOfTimeError

    def line(self, what: str, value: float, unit: str, target: str = "", note: str = "", **more: object) -> Line:
        return Line(self.section, what, value, unit, target, note, more)

    def missing(self, what: str, why: str, target: str = "") -> Line:
        return not_measured(self.section, what, why, target)

    def each(self, what: str, work: Callable[[], Iterable[Line]], target: str = "") -> None:
        """Tell the lines of ``work``; what goes wrong in it is a line too, and the rest of the section goes on."""
        try:
            self.check()
            for line in work():
                self.tell(line)
                self.check()
        except Exception as error:  # whatever it is: the other figures are wanted all the same
            self.tell(self.missing(f"{what}: the rest", reason(error), target))


def reason(error: BaseException) -> str:
    """What went wrong, in a line."""
    if isinstance(error, OutOfTimeError):
        return str(error)
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:300]


def make_bench(section: str, seconds: float, tell: Callable[[Line], None]) -> Bench:
    """On the card if there is one, and at toy size on the processor if not."""
    card = torch.cuda.is_available()
    device = torch.device("cuda" if card else "cpu")
    return Bench(section, device, CARD if card else NO_CARD, Stopwatch(device), tell, time.monotonic() + seconds)
