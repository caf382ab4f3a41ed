"""Conformance suites for plugins: run yours through the suite of its kind.  Needs hypothesis (extra ``dev``)."""

from __future__ import annotations

from stepwell.core.testing_memory import allocator_machine

__all__ = ["allocator_machine"]
