"""Python in a process of its own that compiles kernels instead of interpreting them."""

from __future__ import annotations

import os
import subprocess
import sys


def run(*arguments: str) -> tuple[int, list[str], str]:
    """Exit status, lines and complaints of ``python`` with these arguments."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_DISABLE_LINE_INFO"] = "1"  # the same code, a tenth sooner
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=540)
    return done.returncode, done.stdout.splitlines(), done.stderr
