"""``stepwell workload``: what a workload is like, and which trace formats are read."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import msgspec

from stepwell.cli.load_requests import encoder_of
from stepwell.cli.outputs import check_folder
from stepwell.cli.tables import console
from stepwell.cli.workload_view import print_description
from stepwell.core.config_load import Resolved
from stepwell.core.errors import UserError
from stepwell.core.schema import convert
from stepwell.sim.scenario import read_scenario, read_workload, shaped
from stepwell.sim.workload.describe import describe
from stepwell.sim.workload.request import Workload
from stepwell.sim.workload.sharegpt import SHAREGPT, ShareGptOptions, read_conversations
from stepwell.sim.workload.trace import FORMATS

HELP = "Describe a workload: how requests arrive, how long they are, who sends them, what they share."

EXAMPLES = """\
examples:
  stepwell workload describe AzureLLMInferenceTrace_conv.csv
  stepwell workload describe scenario.toml --out workload.png
  stepwell workload describe run.jsonl                 a journal, as what its clients asked for
  stepwell workload describe trace.csv --skip-bad --set workload.end_s=600
  stepwell workload describe sharegpt.json --tokenizer smollm2
  stepwell workload formats                            what is read, and how it looks

A file ending in .toml is a scenario, whose [workload] is described; any other is a trace.  docs/workloads.md tells the
rules of every format.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", required=True, metavar="describe|formats")
    one = commands.add_parser("describe", help="draw a workload in the terminal, as JSON, or as a picture")
    one.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="a trace, or a scenario.toml (default: built in)"
    )
    one.add_argument("--format", metavar="NAME", help="of the trace (default: found from its first line)")
    one.add_argument("--limit", type=int, metavar="N", help="only the first N requests (0: all)")
    one.add_argument("--rate", type=float, metavar="X", help="scale arrivals by the clock to X a second")
    one.add_argument("--skip-bad", action="store_true", help="count rows that cannot be read instead of stopping")
    one.add_argument(
        "--tokenizer", metavar="MODEL", help="counts the tokens of ShareGPT's texts: folder, GGUF, smollm2"
    )
    one.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any value, as workload.end_s=600")
    one.add_argument("--json", action="store_true", help="as one JSON object")
    one.add_argument("--out", type=Path, metavar="PICTURE", help="draw it as .png or .svg too")
    commands.add_parser("formats", help="list the trace formats that are read")


def run(args: argparse.Namespace) -> int:
    return _formats() if args.what == "formats" else _describe(args)


def _describe(args: argparse.Namespace) -> int:
    if args.out is not None:
        check_folder(args.out, field="out")
    workload = _workload(args)
    if args.out is not None:
        from stepwell.sim.workload.picture import draw_workload  # lazy: start-up

        draw_workload(workload, args.out)
    told = describe(workload)
    if args.json:
        print(msgspec.json.encode(told).decode())
        return 0
    print_description(told, console())
    if args.out is not None:
        print(f"The picture is {args.out.resolve()}")
    return 0


def _workload(args: argparse.Namespace) -> Workload:
    scenario, overrides = None, []
    if args.file is not None and args.file.suffix == ".toml":
        scenario = args.file
    elif args.file is not None:
        overrides += ["workload.kind=trace", f"workload.trace={args.file}"]
    for key in ("format", "limit", "rate"):
        if getattr(args, key) is not None:
            overrides.append(f"workload.{key}={getattr(args, key)}")
    if args.skip_bad:
        overrides.append("workload.skip_bad=true")
    resolved = read_scenario(scenario, overrides=[*overrides, *args.set], environ=os.environ)
    return read_workload(resolved) if args.tokenizer is None else _conversations(resolved, args.tokenizer)


def _conversations(resolved: Resolved, model: str) -> Workload:
    """The texts of a trace, counted in tokens."""
    asked = resolved.config.workload
    if asked.kind != "trace" or asked.format not in ("auto", SHAREGPT.name):
        raise UserError(f"counts the texts of a trace in the format {SHAREGPT.name!r}", field="--tokenizer")
    encode = encoder_of(model)
    workload = read_conversations(
        resolved.trace_path(),
        count_tokens=lambda text: len(encode(text)),
        options=convert(dict(asked.settings), ShareGptOptions, field="workload.settings"),
        skip_bad=asked.skip_bad,
    )
    return shaped(workload, asked)


def _formats() -> int:
    to = console()
    for each in FORMATS.values():
        names = ", ".join(each.options.__struct_fields__)
        to.print(f"{each.name:<10} {each.looks}", soft_wrap=True)
        if names:
            to.print(f"{'':<10} settings: {names}", soft_wrap=True)
    return 0
