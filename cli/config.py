"""``stepwell config``: is a configuration right, and what does it come to?"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from msgspec.structs import replace

from stepwell.cli.serve_access import check_access_files, with_files
from stepwell.core.build import build_scheduler, make_shadow
from stepwell.core.config_load import Resolved
from stepwell.core.errors import UserError
from stepwell.core.registry import complete, make_cost_model
from stepwell.sim.compare.question import read_question
from stepwell.sim.scenario import check_workload, read_scenario
from stepwell.sim.workload.trace import format_of

HELP = "Check a configuration, or show it with every value and where that came from."

EXAMPLES = """\
examples:
  stepwell config check scenario.toml
  stepwell config check scenario.toml --set memory.pages=5000
  stepwell config show                               every default
  stepwell config show scenario.toml --set scheduler.policy=swap > resolved.toml

The strongest layer wins: --set, then the environment (STEPWELL__SCHEDULER__POLICY=swap), the file, the default.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", required=True, metavar="check|show")
    for name, text in (
        ("check", "say in one line whether it is right; exit status 2 if not"),
        ("show", "the whole tree as TOML"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "file",
            nargs="?" if name == "show" else None,
            metavar="FILE",
            help="configuration in TOML" + (" (default: every default)" if name == "show" else ""),
        )
        command.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="any value, as scheduler.depth=2"
        )


def run(args: argparse.Namespace) -> int:
    resolved = read_scenario(args.file, overrides=args.set, environ=os.environ)
    config = complete(resolved.config)
    for note in resolved.notes:
        print(f"note: {note}", file=sys.stderr)
    if args.what == "show":
        print(Resolved(config, resolved.origins, resolved.file).to_toml(), end="")
        return 0
    check_access_files(with_files(resolved, config))
    check_workload(config.workload)
    _look_at_trace(resolved)
    read_question(Path(args.file), {})
    make_cost_model(config.cost)
    scheduler, memory = config.scheduler, config.memory
    counted = replace(config, memory=replace(memory, pages=memory.pages or 1))
    build_scheduler(counted, shadow=make_shadow(config))
    classes = ", ".join(each.name for each in config.classes)
    print(
        f"{args.file} is right: policy {scheduler.policy}, allocator {memory.allocator}, "
        f"{memory.pages or 'as many as fit'} pages of {memory.page_size} tokens, classes {classes};"
        f" digest {config.digest[:12]}"
    )
    return 0


def _look_at_trace(resolved: Resolved) -> None:
    """It need not be there yet, which is worth a word; a file that is no trace will never be one."""
    workload = resolved.config.workload
    if workload.kind != "trace":
        return
    path = resolved.trace_path()
    try:
        format_of(path, None if workload.format == "auto" else workload.format)
    except UserError as error:
        raise UserError(error.message, field=f"workload.{error.field}") from None
    except OSError as error:
        print(f"note: workload.trace cannot be read yet: {path}: {error.strerror or error}", file=sys.stderr)
