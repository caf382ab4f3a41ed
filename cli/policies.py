"""``stepwell policies``: which plugins there are, and what each says of itself."""

from __future__ import annotations

import argparse
import json
from typing import cast, get_args

import msgspec

from stepwell.core.registry import Description, Group, catalogue, describe

HELP = "List scheduling policies, or describe one; other kinds of plugins by --kind."

EXAMPLES = """\
examples:
  stepwell policies list
  stepwell policies describe chat-batch
  stepwell policies describe my_policy.py:Mine
  stepwell policies list --kind allocators
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", required=True, metavar="list|describe")
    kinds = get_args(Group)
    for name, text in (("list", "names and one line each"), ("describe", "its promises, options and documentation")):
        command = commands.add_parser(name, help=text)
        if name == "describe":
            command.add_argument(
                "name", metavar="NAME", help="a registered name, module:attribute or file.py:attribute"
            )
        command.add_argument("--kind", choices=kinds, default="policies", help="kind of plugin (policies)")
        command.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    group = cast(Group, args.kind)
    found = catalogue(group) if args.what == "list" else [describe(group, args.name)]
    if args.json:
        told = [msgspec.to_builtins(each) for each in found]
        print(json.dumps(told if args.what == "list" else told[0], ensure_ascii=False))
    elif args.what == "list":
        _list(found, group)
    else:
        _tell(found[0])
    return 0


def _list(found: list[Description], group: Group) -> None:
    if not found:
        print(f"no {group.replace('_', ' ')} are registered")
    width = max((len(each.name) for each in found), default=0)
    for each in found:
        print(f"{each.name:<{width}}  {each.summary or 'cannot be loaded: ' + each.error}")


def _tell(it: Description) -> None:
    print(f"{it.name} ({it.target}{', from ' + it.distribution if it.distribution else ''})")
    if it.doc:
        print(f"\n{it.doc}")
    if it.promises:
        kept = [name.replace("_", " ") for name, kept in it.promises.items() if kept]
        print(f"\npromises: {', '.join(kept) or 'nothing beyond the one duty of all'}")
    print("\noptions:" if it.options else "\noptions: none")
    for option in it.options:
        default = "required" if option.required else f"default {option.default}"
        print(f"  {option.name} ({option.type}; {default})" + (f"\n      {option.doc}" if option.doc else ""))
