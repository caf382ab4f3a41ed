"""Conformance suites for plugins: run yours through the suite of its kind.  Needs hypothesis (extra ``dev``)."""

from __future__ import annotations

from stepwell.core.testing_cost import check_cost_model
from stepwell.core.testing_fault import Fault, find_fault, replay_fault
from stepwell.core.testing_memory import allocator_machine
from stepwell.core.testing_parsing import check_reasoning_parser, check_tool_parser
from stepwell.core.testing_play import ConformanceError
from stepwell.core.testing_policy import check_policy

__all__ = [
    "ConformanceError",
    "Fault",
    "allocator_machine",
    "check_cost_model",
    "check_policy",
    "check_reasoning_parser",
    "check_tool_parser",
    "find_fault",
    "replay_fault",
]
