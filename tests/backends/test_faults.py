"""Errors of a device: those after which it is lost for the process, those that cost a step, and those at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `model`")

import torch

from stepwell.backends.device import memory
from stepwell.backends.device.faults import is_sticky, out_of_memory, reason_of
from stepwell.backends.device.memory import Room, making_room_for, pages_for, room_on, take
from stepwell.backends.host import HostStepper
from stepwell.backends.torch_backend import TorchBackend
from stepwell.core.errors import DeviceLostError, UserError
from stepwell.core.instructions import Launch
from stepwell.core.sampling import SamplingParams
from stepwell.tests.backends.driving import Hand, make, serve
from stepwell.tests.backends.tiny import write_gguf

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("tiny") / "model.gguf")


class Coded(RuntimeError):
    """As newer torch raises it."""

    error_code = 700


def lost() -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


STICKY = [
    RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be …"),
    torch.AcceleratorError("CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA`"),
    RuntimeError("Triton Error [CUDA]: unspecified launch failure"),
    RuntimeError("Triton Error [CUDA]: misaligned address"),
    RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    RuntimeError("CUDA error: the launch timed out and was terminated"),
    RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal address"),
    Coded("something new"),
]
HARMLESS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: invalid configuration argument"),
    RuntimeError("Triton Error [CUDA]: too many resources requested for launch"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
    torch.AcceleratorError("something of the device"),
    RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
    IndexError("index 400 is out of bounds"),
    KeyError("an illegal memory access"),
    MemoryError(),
]


@pytest.mark.parametrize("error", STICKY, ids=str)
def test_an_error_after_which_nothing_works_is_known_as_such(error: Exception) -> None:
    assert is_sticky(error)
    with pytest.raises(DeviceLostError, match=r"^cpu: (?!.*\n)"):
        reason_of(error, CPU)


@pytest.mark.parametrize("error", HARMLESS, ids=str)
def test_any_other_costs_a_step(error: Exception) -> None:
    assert not is_sticky(error)
    assert "\n" not in reason_of(error, CPU)


@pytest.mark.parametrize("error", HARMLESS, ids=str)
def test_what_only_says_that_something_failed_has_the_device_asked(error: Exception) -> None:
    """A library's own error may hide what was behind it; an error of the program has nothing to do with the device."""
    asked = any(word in str(error) for word in ("CUDA error", "Triton Error", "of the device"))
    assert is_sticky(error, lost) == (asked and not out_of_memory(error))


# ------------------------------------------------------------------------------------------------ in a step


class Failing:
    """A runner that raises in some of its runs."""

    def __init__(self, backend: TorchBackend, errors: dict[int, Exception]) -> None:
        assert isinstance(backend.stepper, HostStepper)
        self.inner, self.errors, self.runs = backend.stepper.runner, errors, 0
        backend.stepper.runner = self

    def run(self, work: Any) -> torch.Tensor:
        self.runs += 1
        if self.runs in self.errors:
            raise self.errors[self.runs]
        return self.inner.run(work)


def test_running_out_of_memory_costs_a_step_and_no_token(model: Path) -> None:
    """The others are computed again; nobody's answer changes, and the reason says what helps."""
    seeded = [SamplingParams(temperature=1.0, seed=index) for index in range(6)]
    requests = [([index + 1] * (5 + index), 12, seeded[index]) for index in range(6)]
    expected = serve(make(model), requests)
    backend = make(model)
    Failing(backend, {2: HARMLESS[0], 9: MemoryError("host")})
    served = serve(backend, requests, policy="fcfs")
    assert served.answers == expected.answers
    assert served.preemptions["recompute"] > 0
    hand = Hand(make(model))
    Failing(hand.backend, {1: HARMLESS[0]})
    hand.backend.admit(1, [1, 2, 3], 5)
    failed = hand.backend.execute(Launch(1, tables=[(1, [3])], slices=[(1, 0, 3, True)]))
    assert failed.failed.startswith("out of memory on cpu in a step (CUDA out of memory. Tried to allocate 20.00 GiB.)")
    assert "memory.pages or scheduler.token_budget" in failed.failed
    assert not failed.device_lost


def test_a_lost_device_is_no_result(model: Path) -> None:
    hand = Hand(make(model))
    Failing(hand.backend, {1: STICKY[0]})
    hand.backend.admit(1, [1, 2, 3], 5)
    with pytest.raises(DeviceLostError, match="illegal memory access"):
        hand.backend.execute(Launch(1, tables=[(1, [3])], slices=[(1, 0, 3, True)]))


# ------------------------------------------------------------------------------------------------ at the start


def test_what_is_not_for_pages_is_counted() -> None:
    room = Room(limit=1000, weights=300, activation=100, graphs=50, staging=40, reserve=10, page=100)
    assert room.pages == 5
    assert Room(limit=400, weights=300, activation=150, page=100).pages == 0
    beside = room_on(CUDA, 1 << 40, weights=1, activation=2, page=MIB, host_pages=1000, graphs=3)
    assert (beside.staging, beside.reserve) == (64 * MIB, memory.RESERVE)
    assert room_on(CUDA, 1 << 40, weights=1, activation=2, page=MIB, host_pages=0).staging == 0
    assert room_on(CPU, 1 << 40, weights=1, activation=2, page=MIB, host_pages=9).reserve == 0
    told = Room(limit=9, weights=MIB, activation=2 * MIB, graphs=3 * MIB, reserve=4 * MIB, page=1).told()
    assert told == "1 MiB of weights, 2 MiB for the largest step, 3 MiB for graphs, 4 MiB in reserve"


def test_pages_are_those_that_are_wanted_or_those_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(limit=100 * MIB, weights=0, activation=0, page=MIB)
    assert pages_for(room, 0, 10, 64, CUDA) == 100
    assert pages_for(room, 0, 10, 64, CPU) == 40
    assert pages_for(room, 90, 10, 64, CPU) == 90
    with pytest.raises(UserError, match=r"and 101 pages .*; 100 pages would fit, or a smaller") as refused:
        pages_for(room, 101, 10, 64, CUDA)
    assert refused.value.field == "memory.pages"
    with pytest.raises(UserError, match=r"101 pages .*; 100 pages would fit \(host pages count too\)"):
        pages_for(room, 91, 10, 64, CPU)
    with pytest.raises(UserError, match=r"1 pages .*; 0 pages would fit"):
        pages_for(Room(limit=0, weights=0, activation=0, page=MIB), 0, 0, 64, CUDA)
    monkeypatch.setattr(memory, "available_bytes", lambda device: 9 * MIB)
    with pytest.raises(UserError, match="9 MiB of the machine's memory do not hold 10 pages") as refused:
        pages_for(room, 0, 10, 64, CUDA)
    assert refused.value.field == "memory.host_pages"


def test_out_of_memory_after_all_becomes_fewer_pages_or_an_error() -> None:
    tried: list[int] = []

    def make_pool(pages: int, most: int = 95) -> int:
        tried.append(pages)
        if pages > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore")
        return pages

    assert take(make_pool, 100, fewer=True) == 94
    assert tried == [100, 97, 94]
    with pytest.raises(UserError, match=r"there is no room for 100 pages, .* Tried to allocate 2 GiB") as refused:
        take(make_pool, 100, fewer=False)
    assert refused.value.field == "memory.pages"
    with pytest.raises(UserError, match="there is no room for"):
        take(lambda pages: make_pool(pages, 10), 100, fewer=True)
    with pytest.raises(ValueError, match="else"):
        take(lambda pages: int("else"), 5, fewer=True)
    with (
        pytest.raises(UserError, match="no room for the weights: CUDA out of memory") as refused,
        making_room_for("the weights", "model.path"),
    ):
        make_pool(1 << 40)
    assert refused.value.field == "model.path"


def test_a_backend_takes_the_pages_that_fit(model: Path) -> None:
    """Of the memory that it may have, what weights and steps leave: half of it, on the processor."""
    info = make(model, pages=0, memory_mib=600, host_pages=100).info
    assert info.pages == info.possible_pages // 2 - 100
    assert info.pages * info.page_bytes < 300 * MIB
    with pytest.raises(UserError, match=r"memory\.pages"):
        make(model, pages=info.possible_pages, memory_mib=600, host_pages=100)
