"""What an error of the device means: can this process go on, or is the device lost for it?

CUDA calls an error *sticky* if it corrupts the context: every later call of the process fails with the same error, and
nothing that was on the device can be read (CUDA runtime API, ``cudaError``: "the process must be terminated and
relaunched").  Running out of memory is no such error, nor is a launch that was refused.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from stepwell.core.errors import DeviceLostError

_STICKY = (
    "illegal memory access",
    "illegal address",
    "illegal instruction",
    "misaligned address",
    "device-side assert",
    "unspecified launch failure",
    "launch timed out",
    "launch failed",
    "uncorrectable ecc",
    "ecc error",
    "uncorrectable nvlink",
    "nvlink error",
    "invalid program counter",
    "invalid address space",
    "hardware stack error",
    "invalid pc",
    "context is destroyed",
    "context has been destroyed",
    "gpu is lost",
    "fallen off the bus",
)
"""In what torch, Triton and the driver say of such errors, in small letters."""
_NO_ROOM = ("CUBLAS_STATUS_ALLOC_FAILED", "can't allocate memory")
"""In what cuBLAS and torch's allocator for the processor say."""
_STICKY_CODES = frozenset({214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721})
"""``cudaError`` of the same."""
_OF_A_DEVICE = ("cuda", "cublas", "cudnn", "nvrtc", "nccl", "accelerator")
"""In what else a device's libraries say: some of them hide what was behind it."""

Probe = Callable[[], object]
"""Asks the device for anything at all; raises if it does not answer."""


def out_of_memory(error: BaseException) -> bool:
    """Whether there was no room on the device, or on the host for it."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in str(error) for words in _NO_ROOM)


def is_sticky(error: BaseException, probe: Probe = lambda: None) -> bool:
    """Whether the device is lost for this process.

    Known by type, code or wording; where a library only says that something of the device failed, by ``probe``.
    """
    if out_of_memory(error) or not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    if getattr(error, "error_code", None) in _STICKY_CODES or any(words in text for words in _STICKY):
        return True
    if not isinstance(error, torch.AcceleratorError) and not any(word in text for word in _OF_A_DEVICE):
        return False
    try:
        probe()
    except RuntimeError:
        return True
    return False


def probe_of(device: torch.device) -> Probe:
    """Waits for all that ``device`` was given to do: a lost one says so."""
    if device.type != "cuda":
        return lambda: None
    return lambda: torch.cuda.synchronize(device)


def reason_of(error: Exception, device: torch.device) -> str:
    """Why a step failed, in a line, for whoever asked and whoever operates.

    Raises ``DeviceLostError`` if the device is lost.
    """
    if is_sticky(error, probe_of(device)):
        raise DeviceLostError(f"{device}: {_line(error)}") from error
    if out_of_memory(error):
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what is free in pieces of the wrong size can be had again
        return (
            f"out of memory on {device} in a step ({_line(error)}); smaller memory.pages or scheduler.token_budget"
            " leave it more room"
        )
    return f"{type(error).__name__}: {_line(error)}"


def _line(error: Exception) -> str:
    """Without the advice for developers that follows."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].strip()
