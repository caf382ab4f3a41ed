"""Prompts that begin alike, as page keys."""

from __future__ import annotations


def alike(pages: int, shared: int, own: int) -> list[int]:
    """Keys of ``pages`` full pages: the first ``shared`` are everybody's, the rest those of kind ``own``."""
    return [1 + place if place < shared else 1000 * (own + 100 * shared + 1) + place for place in range(pages)]
