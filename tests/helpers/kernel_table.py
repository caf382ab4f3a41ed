"""The table of kernels in docs/cuda.md.  ``python -m stepwell.tests.helpers.kernel_table`` compiles and writes it anew.

Registers, shared memory and spills are of the compiler's version, so tests compare names and configurations only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stepwell.backends.kernels.ahead import TARGETS, Built, build_all, operations, variants
from stepwell.tests.architecture_rules import ROOT

PAGE = ROOT / "docs" / "cuda.md"
BEGIN, END = "<!-- kernels: made by tests/helpers/kernel_table.py -->", "<!-- end of kernels -->"


def table(built: Iterable[Built]) -> Iterator[str]:
    """A line for each kernel and configuration; the figures are registers, shared memory and spills by target."""
    yield f"| operation | kernel | configuration | warps | stages | {' | '.join(TARGETS)} |"
    yield "|---" * (5 + len(TARGETS)) + "|"
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for it in built:
        assert not it.wrong, it
        figures = f"{it.registers}, {it.shared}, {it.spills}"
        lines.setdefault((it.op, it.kernel, it.label, str(it.warps), str(it.stages)), {})[it.target] = figures
    for names, by_target in lines.items():
        yield f"| {' | '.join([*names, *(by_target[each] for each in TARGETS)])} |"


def expected() -> list[tuple[str, ...]]:
    """Operation, kernel, configuration, warps and stages of everything that ships, in the table's order."""
    return [
        (op, it.name, it.label, str(it.num_warps), str(it.num_stages)) for op in operations() for it in variants(op)
    ]


def on_the_page() -> list[tuple[str, ...]]:
    """The same, as the page has it."""
    lines = PAGE.read_text().partition(BEGIN + "\n")[2].partition(END)[0].splitlines()[2:]
    return [tuple(cell.strip() for cell in line.strip("|").split("|"))[:5] for line in lines]


def main() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN + "\n")
    made = "\n".join(table(build_all()))
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
