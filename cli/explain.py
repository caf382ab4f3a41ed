"""``stepwell explain``: one request's story."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from pathlib import Path

import msgspec

from stepwell.cli.progress import Bar
from stepwell.sim.explain import explain

HELP = "Tell one request's story from a journal: why it waited, for whom it gave way, what that cost, how it ended."

EXAMPLES = """\
examples:
  stepwell explain run.jsonl --request 117
  stepwell explain run.jsonl --request 117 --json
"""

_INDENT = " " * 16
_WIDEST = 120


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="journal (its first segment)")
    parser.add_argument("--request", type=int, required=True, metavar="ID", help="as `stepwell journal show` names it")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def run(args: argparse.Namespace) -> int:
    with Bar("reading the journal") as bar:
        story = explain(args.file, args.request, bar)
    if args.json:
        print(msgspec.json.encode(story).decode())
        return 0
    width = max(40, min(shutil.get_terminal_size().columns, _WIDEST))
    for line in story.lines():
        indent = _INDENT if line.startswith(" ") else ""
        print(textwrap.fill(line, width, subsequent_indent=indent, drop_whitespace=True, break_long_words=False))
    return 0
