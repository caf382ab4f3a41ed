"""The command line: ``stepwell COMMAND …`` or ``python -m stepwell COMMAND …``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from stepwell.cli.app import run


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status (see ``cli.app``)."""
    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
