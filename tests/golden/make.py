"""Writes the golden journals anew, after a change of decisions or of the format that was meant:

.venv/bin/python -m stepwell.tests.golden.make
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stepwell.core.registry import names
from stepwell.tests.core.journals import RotateEvery, record
from stepwell.tests.core.shells import Case, fixed_case

HERE = Path(__file__).parent


def golden_case(policy: str) -> Case:
    """Preempts, cancels and repeats; steps fail under one policy."""
    case = fixed_case(0, policy, "paged") if policy == "chat-batch" else fixed_case(3, policy, "paged")
    return replace(case, scheduler={**case.scheduler, "max_waiting": 100}, max_tokens=12)


def main() -> None:
    for old in HERE.glob("*.jsonl"):
        old.unlink()
    for policy in sorted(names("policies")):
        record(golden_case(policy), HERE / f"{policy}.jsonl")
    record(golden_case("swap"), HERE / "segments.jsonl", beside=[RotateEvery(20)])


if __name__ == "__main__":
    main()
