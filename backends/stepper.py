"""What executes a launch: on the host (``host``), or on a device (``device.stepper``)."""

from __future__ import annotations

from typing import Protocol

from stepwell.backends.follow import Group
from stepwell.core.instructions import Launch
from stepwell.core.protocols import StepResult


class Stepper(Protocol):
    """Bound to a model, its pages, and the table of live requests."""

    @property
    def group(self) -> Group: ...
    @property
    def graphs(self) -> int:
        """Recorded steps that it has."""
        ...

    @property
    def graph_bytes(self) -> int:
        """Memory that they hold."""
        ...

    def step(self, batch: Launch) -> StepResult:
        """Copies, forward pass, sampling.  Raises whatever goes wrong; requests keep the tokens they had before, and
        the decode group is to be cleared."""
        ...

    def rehearse(self, tokens: int, running: int) -> None:
        """A step as large as any will be, on pages that are thrown away."""
        ...

    def clear(self) -> None:
        """Forget the decode group."""
        ...
