"""Compiling ahead of time finds what is wrong with a kernel, and says it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `model`")
pytest.importorskip("triton", reason="needs the extra `cuda`")

import triton
import triton.language as tl

from stepwell.backends.kernels import ahead
from stepwell.backends.kernels.ahead import Built, Variant, variants
from stepwell.core.errors import UserError
from stepwell.tests.helpers.compiling import run

PROGRAM = """
import sys, triton, triton.language as tl
from stepwell.backends.kernels.ahead import Variant, build

@triton.jit
def _good(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, at, mask=at < n)

@triton.jit
def _large(x, y, out, SIDE: tl.constexpr):
    at = tl.arange(0, SIDE)
    square = at[:, None] * SIDE + at[None, :]
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for step in range(0, 64):
        total = tl.dot(tl.load(x + square + step * SIDE), tl.load(y + square + step), total)
    tl.store(out + square, total)

@triton.jit
def _wide(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.cumsum(tl.load(x + at), 0))

def said(kernel, signature, **constants):
    more = {name: constants.pop(name) for name in ("num_warps", "num_stages", "why_spills") if name in constants}
    it = build("toy", Variant(kernel=kernel, signature=signature, constants=constants, **more), "sm_80")
    print(it.wrong or "fine")

said(_good, {"x": "*i32", "n": "i32"}, BLOCK=64)
said(_good, {"x": "*i32", "n": "i32"}, BLOCK=63)
said(_good, {"x": "*i32"}, BLOCK=64)
said(_large, {"x": "*bf16", "y": "*bf16", "out": "*fp32"}, SIDE=128, num_stages=6)
said(_wide, {"x": "*fp32", "out": "*fp32"}, BLOCK=8192, num_warps=1)
said(_wide, {"x": "*fp32", "out": "*fp32"}, BLOCK=8192, num_warps=1, why_spills="shows that one may")
"""


def test_what_does_not_do_is_found(tmp_path: Path) -> None:
    path = tmp_path / "program.py"  # a file, since Triton reads a kernel's source
    path.write_text(PROGRAM)
    status, lines, complaints = run(str(path))
    assert status == 0, complaints
    said = "\n".join(lines)
    assert lines[0] == "fine"
    assert "power of 2" in said
    assert "arguments without a type: ['n']" in said
    assert "bytes of shared memory; sm_80 has 166912" in said
    assert "bytes of each thread; mend it" in said
    assert lines[-1] == "fine"


def test_interpreted_kernels_are_not_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    with pytest.raises(UserError, match="TRITON_INTERPRET"):
        next(ahead.build_all())
    assert ahead.main(["--target", "sm_90"]) == 2
    assert "TRITON_INTERPRET" in capsys.readouterr().err


@triton.jit  # type: ignore[untyped-decorator]
def _nothing(out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    tl.store(out + tl.arange(0, BLOCK), 0)


def test_two_variants_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Variant(kernel=_nothing, signature={"out": "*i32"}, constants={"BLOCK": 16})
    monkeypatch.setattr("importlib.import_module", lambda _: type("module", (), {"variants": lambda: [it, it]}))
    with pytest.raises(UserError, match="toy: nothing"):
        variants("toy")


def test_the_exit_status_says_whether_all_is_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = Built("toy", "nothing", "", 4, 3, "sm_90", registers=8)
    broken = Built("toy", "nothing", "", 4, 3, "sm_90", wrong="does not compile: because")
    monkeypatch.setattr(ahead, "build_all", lambda *_: iter([fine]))
    assert ahead.main([]) == 0
    assert "registers" in capsys.readouterr().out
    monkeypatch.setattr(ahead, "build_all", lambda *_: iter([fine, broken]))
    assert ahead.main(["--json"]) == 1
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 2
    assert "because" in told.err
