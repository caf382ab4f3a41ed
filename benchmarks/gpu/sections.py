"""The parts of the script, in order, and how long each may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """``module`` has ``run(bench)``, which gives one line after the other.  It runs in a process of its own, which is
    ended after ``seconds``: a fault of the card ends no other."""

    name: str
    title: str
    module: str
    seconds: float
    targets: tuple[str, ...] = ()


SECTIONS = (
    Section("environment", "Environment", "machine", 30),
    Section("correct", "Kernels against their references", "correct", 60, ("correct",)),
    Section("speed", "Time of the kernels", "speed", 45, ("attention",)),
    Section("engine", "The engine on a Llama 3 8B of random weights", "engine", 110, ("streaming", "gap")),
    Section("journals", "Recorded decisions, executed", "journals", 80, ("steps", "decisions")),
    Section("theirs", "The same requests by transformers", "theirs", 90, ("theirs",)),
)
DEVICE = "device"
"""What the line is called that says on what a section ran: ``cuda`` or ``cpu``."""
CPU, CARD = "cpu", "cuda"

TOTAL_S = 345.0
"""All together, at most: few take as long as they may."""
