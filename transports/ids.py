"""Names for things that clients are told of: nobody can guess one, and making one costs next to nothing."""

from __future__ import annotations

import os


def fresh(prefix: str) -> str:
    """``prefix`` and 128 random bits."""
    return prefix + os.urandom(16).hex()
