"""``stepwell policies``: which plugins there are, and what each says of itself."""

from __future__ import annotations

import argparse
import json
import shlex
from typing import cast, get_args

import msgspec

from stepwell.core.catalogue import Description, catalogue, describe
from stepwell.core.errors import UserError
from stepwell.core.protocols import API_VERSION, SchedulerPolicy
from stepwell.core.registry import Group, make_policy

HELP = "List scheduling policies, describe one, or check one for conformance; other kinds of plugins by --kind."

EXAMPLES = """\
examples:
  stepwell policies list
  stepwell policies describe chat-batch
  stepwell policies describe my_policy.py:Mine
  stepwell policies list --kind allocators
  stepwell policies check my_policy.py:Mine           is it lawful, repeatable, honest; does it keep its promises?
  stepwell policies check my_policy.py:Mine --replay '{"arrivals": [...]}'
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", required=True, metavar="list|describe|check")
    kinds = get_args(Group)
    for name, text in (("list", "names and one line each"), ("describe", "its promises, options and documentation")):
        command = commands.add_parser(name, help=text)
        if name == "describe":
            command.add_argument(
                "name", metavar="NAME", help="a registered name, module:attribute or file.py:attribute"
            )
        command.add_argument(
            "--kind",
            choices=kinds,
            default="policies",
            metavar="KIND",
            help=f"of plugin: {', '.join(kinds)} (policies)",
        )
        command.add_argument("--json", action="store_true", help="as JSON")
    check = commands.add_parser("check", help="run the conformance suite on a policy")
    check.add_argument("name", metavar="NAME", help="a registered name, module:attribute or file.py:attribute")
    check.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="one of its options")
    check.add_argument("--examples", type=int, default=EXAMPLES_OF_CHECK, metavar="N", help="workloads to try (200)")
    check.add_argument("--replay", metavar="WORKLOAD", help="only this workload, as an earlier check printed it")


EXAMPLES_OF_CHECK = 200


def run(args: argparse.Namespace) -> int:
    if args.what == "check":
        return _check(args)
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
    written = f"written for {it.api_version}" if it.api_version is not None else "the plugin states none"
    print(f"API version: {written}; this Stepwell offers {API_VERSION}")
    print("\noptions:" if it.options else "\noptions: none")
    for option in it.options:
        default = "required" if option.required else f"default {option.default}"
        print(f"  {option.name} ({option.type}; {default})" + (f"\n      {option.doc}" if option.doc else ""))


def _check(args: argparse.Namespace) -> int:
    """Status 1 if the policy fails, with what broke and the smallest workload found that shows it."""
    try:
        from stepwell.core import testing  # lazy: needs hypothesis
    except ModuleNotFoundError as error:
        raise UserError(f"the conformance suite needs {error.name}: pip install 'stepwell[dev]'") from None
    if args.examples < 1:
        raise UserError(f"must be at least 1, not {args.examples}", field="--examples")
    options = _options(args.option)
    make_policy(args.name, options)  # what cannot be made at all is the reader's slip, and told as one

    def make() -> SchedulerPolicy:
        return make_policy(args.name, options)

    fault = testing.replay_fault(make, args.replay) if args.replay else testing.find_fault(make, args.examples)
    if fault is None:
        kept = [name.replace("_", " ") for name, kept in msgspec.structs.asdict(make().promises).items() if kept]
        tried = "the workload" if args.replay else f"{args.examples} workloads"
        print(f"{args.name} conforms: {tried}, promises kept: {', '.join(kept) or 'none made'}")
        return 0
    print(f"{args.name} {fault.what}")
    if fault.scenario is not None:
        print("\nthe smallest workload found that shows it:")
        print(fault.in_words())
        print("\nagain:")
        print(f"  stepwell policies check {args.name} --replay {shlex.quote(fault.as_json())}")
    return 1


def _options(given: list[str]) -> dict[str, object]:
    """``KEY=VALUE`` as JSON, or as text where it is none; ``a.b=1`` is a table."""
    options: dict[str, object] = {}
    for each in given:
        key, equals, text = each.partition("=")
        if not equals or not key:
            raise UserError(f"is written KEY=VALUE, not {each!r}", field="--option")
        try:
            value: object = json.loads(text)
        except json.JSONDecodeError:
            value = text
        *tables, last = key.split(".")
        at: dict[str, object] = options
        for table in tables:
            at = cast(dict[str, object], at.setdefault(table, {}))
        at[last] = value
    return options
