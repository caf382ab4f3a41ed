"""Kernels compiled ahead of time, without a GPU: what the interpreter cannot see is found out before a card is.

Every ``triton.py`` in a folder beside this file has ``variants() -> list[Variant]``, which names each of its kernels at
each configuration that it ships.  They are compiled for every architecture of ``TARGETS``, and what the machine code
takes is read from it.  ``python -m stepwell.backends.kernels.ahead`` prints the table, and fails if a kernel does not
compile, needs more shared memory than the architecture has, or spills registers and does not say why.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from stepwell.backends import kernels
from stepwell.core.errors import UserError

SHARED = {"sm_80": 163 << 10, "sm_90": 227 << 10}
"""Bytes of shared memory that one block may have, by architecture (CUDA C++ Programming Guide, compute capability)."""
TARGETS = tuple(SHARED)

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel at one configuration, as its launcher calls it."""

    kernel: Any
    """What ``triton.jit`` made."""
    signature: Mapping[str, str]
    """Types of the arguments that are not constants, by name, such as ``*bf16``, ``*i32``, ``i64``, ``fp32``."""
    constants: Mapping[str, object] = {}
    num_warps: int = 4
    num_stages: int = 3
    label: str = ""
    """What sets it apart from the kernel's other configurations, such as ``bf16, dim 128``; not empty if there are."""
    divisible: Sequence[str] = ()
    """Integers that are multiples of 16 in all calls that matter; pointers always are."""
    fused: bool = True
    """Whether a product and a sum may be one operation that rounds once; the launcher says ``enable_fp_fusion``."""
    why_spills: str = ""
    """The reason if registers do not suffice and that is meant."""

    @property
    def name(self) -> str:
        """Of the kernel, without the leading underscore that keeps it in its module."""
        return str(self.kernel.fn.__name__).lstrip("_")


class Built(msgspec.Struct, frozen=True):
    """What the machine code of a variant takes, or why there is none (``wrong``)."""

    op: str
    kernel: str
    label: str
    warps: int
    stages: int
    target: str
    registers: int = 0
    """Of each thread."""
    shared: int = 0
    """Bytes of each block."""
    spills: int = 0
    """Bytes of each thread that lie in memory."""
    wrong: str = ""


def operations() -> list[str]:
    """The folders that have kernels."""
    found = [each.name for each in pkgutil.iter_modules(kernels.__path__) if each.ispkg]
    return [op for op in found if importlib.util.find_spec(f"{kernels.__name__}.{op}.triton") is not None]


def variants(op: str) -> list[Variant]:
    """Of one operation.  Raises ``UserError`` where two have one name."""
    module = importlib.import_module(f"{kernels.__name__}.{op}.triton")
    listed: list[Variant] = module.variants()
    names = [(each.name, each.label) for each in listed]
    twice = sorted({f"{op}: {name} ({label})" for name, label in names if names.count((name, label)) > 1})
    if twice:
        raise UserError(f"variants of one name: {', '.join(twice)}; give them labels")
    return listed


def build(op: str, it: Variant, target: str) -> Built:
    """Compile one variant for ``target``, one of ``TARGETS``."""
    made = Built(op, it.name, it.label, it.num_warps, it.num_stages, target)
    try:
        compiled = triton.compile(
            _source(it),
            target=GPUTarget("cuda", int(target.removeprefix("sm_")), 32),
            options={"num_warps": it.num_warps, "num_stages": it.num_stages, "enable_fp_fusion": it.fused},
        )
        registers, spills = _usage(compiled.asm["cubin"])
    except Exception as error:  # of any kind: the compiler's, the assembler's, the kernel's own
        return msgspec.structs.replace(made, wrong=f"does not compile: {str(error).strip() or repr(error)}")
    made = msgspec.structs.replace(made, registers=registers, shared=compiled.metadata.shared, spills=spills)
    return msgspec.structs.replace(made, wrong=_wrong(it, made))


def _wrong(it: Variant, made: Built) -> str:
    if made.shared > SHARED[made.target]:
        return f"needs {made.shared} bytes of shared memory; {made.target} has {SHARED[made.target]}"
    if made.spills and not it.why_spills:
        return f"spills {made.spills} bytes of each thread; mend it, or say in `why_spills` why that is meant"
    return ""


def _source(it: Variant) -> Any:
    """What Triton compiles; every argument of the kernel has a type or a value."""
    names = list(it.kernel.arg_names)
    unknown = sorted({*it.signature, *it.constants} - set(names))
    missing = [name for name in names if name not in it.signature and name not in it.constants]
    if unknown or missing:
        raise UserError(f"arguments without a type: {missing}; and that the kernel has not: {unknown}")
    whole = {name: it.signature.get(name, "constexpr") for name in names}
    aligned = [name for name, kind in it.signature.items() if kind.startswith("*") or name in it.divisible]
    return ASTSource(
        fn=it.kernel,
        signature=whole,
        constexprs={(names.index(name),): value for name, value in it.constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of memory, that each thread takes."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        said = subprocess.run(tool, capture_output=True, text=True, check=True, timeout=60).stdout
    found = _USAGE.search(said)
    if found is None:
        raise UserError(f"cuobjdump says nothing of registers: {said.strip()[:200]}")
    registers, stack, local = map(int, found.groups())
    return registers, stack + local


def build_all(targets: Sequence[str] = TARGETS, ops: Sequence[str] | None = None) -> Iterator[Built]:
    """Everything that ships, or what ``ops`` ship.  Raises ``UserError`` where Triton interprets instead."""
    if triton.knobs.runtime.interpret:
        raise UserError("kernels are interpreted in this process: run it without TRITON_INTERPRET")
    for op in operations() if ops is None else ops:
        for it in variants(op):
            for target in targets:
                yield build(op, it, target)


HEAD = ("operation", "kernel", "configuration", "warps", "stages", "target", "registers", "shared", "spills")


def cells(it: Built) -> list[str]:
    """A line of the table, in the order of ``HEAD``."""
    return [
        *(it.op, it.kernel, it.label, str(it.warps), str(it.stages), it.target),
        *(str(it.registers), str(it.shared), str(it.spills)),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m stepwell.backends.kernels.ahead", description=__doc__)
    parser.add_argument("--target", choices=TARGETS, action="append", help="an architecture; may be given again")
    parser.add_argument("--op", choices=operations(), action="append", help="an operation; may be given again")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each kernel")
    chosen = parser.parse_args(arguments)
    wrong = 0
    try:
        if not chosen.json:
            print("  ".join(HEAD))
        for it in build_all(chosen.target or TARGETS, chosen.op):
            print(msgspec.json.encode(it).decode() if chosen.json else "  ".join(cells(it)), flush=True)
            if it.wrong:
                wrong += 1
                print(f"{it.op}: {it.kernel} ({it.label}) for {it.target} {it.wrong}", file=sys.stderr)
    except UserError as error:
        print(error.message, file=sys.stderr)
        return 2
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
