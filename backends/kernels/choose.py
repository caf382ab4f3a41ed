"""Which kernels a device gets, and why."""

from __future__ import annotations

from typing import Literal

import msgspec
import torch

from stepwell.backends.kernels.plain import PlainKernels
from stepwell.backends.kernels.suite import Kernels
from stepwell.core.errors import UserError

Asked = Literal["auto", "plain", "triton"]

FIELD = "options.kernels"
OLDEST = (8, 0)
"""Compute capability that the kernels are compiled for; cards before it do not multiply bfloat16."""


class Choice(msgspec.Struct, frozen=True):
    """The suite."""

    kernels: Kernels
    why: str = ""
    """Why not the faster one; empty if nothing is to be said."""

    @property
    def told(self) -> str:
        """For people."""
        return f"{self.kernels.name} ({self.why})" if self.why else self.kernels.name


def choose(asked: Asked, device: torch.device) -> Choice | None:
    """None: the host's own runners, which need no kernels; ``auto`` is that on a processor.

    Raises ``UserError`` if Triton is asked for and cannot be used there.
    """
    if asked == "plain":
        return Choice(PlainKernels())
    if asked == "triton":
        problem = _problem(device)
        if problem:
            raise UserError(f"triton cannot be used on {device}: {problem}", field=FIELD)
        return Choice(_triton())
    if device.type == "cpu":
        return None
    problem = _problem(device)
    return Choice(PlainKernels(), problem) if problem else Choice(_triton())


def _problem(device: torch.device) -> str:
    """Why Triton's kernels cannot be used on the device; empty if they can."""
    try:
        from triton import knobs  # lazy: only where a device, or the interpreter, is to be used
    except ImportError as error:
        return f"it cannot be imported ({error})"
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < OLDEST:
            return f"compute capability {capability[0]}.{capability[1]} is below {OLDEST[0]}.{OLDEST[1]}"
        return ""
    if device.type == "cpu":
        return (
            "" if knobs.runtime.interpret else "there it runs in its interpreter alone (TRITON_INTERPRET=1, for tests)"
        )
    return "kernels are made for cuda"


def _triton() -> Kernels:
    from stepwell.backends.kernels.fused import TritonKernels  # lazy: it imports Triton

    return TritonKernels()
