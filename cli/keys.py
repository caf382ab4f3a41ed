"""``stepwell keys``: make a key for a client, or the digest of one that there is."""

from __future__ import annotations

import argparse
import getpass
import re
import secrets
import sys
from hashlib import sha256

from stepwell.core.config_gateway import KeyConfig, check_access
from stepwell.core.config_load import toml_value
from stepwell.core.errors import UserError
from stepwell.core.schema import convert

HELP = "Make keys for clients; the configuration knows their digests only."

EXAMPLES = """\
examples:
  stepwell keys new web >> keys.toml                 the key on the terminal, once; what the server needs in the file
  stepwell keys new nightly --tenant acme --class batch --expires 2027-01-31 >> keys.toml
  stepwell keys new scraper --metrics >> keys.toml
  stepwell keys hash < key.txt                       the digest of a key, or of the token of an operator

A server takes keys from [[keys]] of its configuration, and from gateway.key_file, which it reads again when it changes.
"""

PREFIX = "sw-"
BYTES = 32
"""Of chance in a key: nobody guesses it, so a plain digest keeps it."""

_KEY = re.compile(r"[\x21-\x7e]{1,512}")


def arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", required=True, metavar="new|hash")
    new = commands.add_parser("new", help="a fresh key, shown once on stderr, and its [[keys]] table on stdout")
    new.add_argument("name", metavar="NAME", help="what logs and reports call it")
    new.add_argument("--tenant", metavar="TENANT", help="whose requests those with it are (the name)")
    new.add_argument(
        "--class", dest="classes", action="append", default=[], metavar="CLASS", help="only such requests; repeatable"
    )
    new.add_argument(
        "--model", dest="models", action="append", default=[], metavar="MODEL", help="only this model; repeatable"
    )
    new.add_argument(
        "--origin", dest="origins", action="append", default=[], metavar="ORIGIN", help="only this page; repeatable"
    )
    new.add_argument("--expires", default="", metavar="DATE", help="from then on it opens nothing, as 2027-01-31")
    new.add_argument("--trusted", action="store_true", help="it is a gateway's, which names tenants itself")
    new.add_argument("--metrics", action="store_true", help="it may read /metrics")
    commands.add_parser("hash", help="read a key from stdin and print its digest")


def run(args: argparse.Namespace) -> int:
    if args.what == "hash":
        print(_digest(_asked()))
        return 0
    key = PREFIX + secrets.token_urlsafe(BYTES)
    table: dict[str, object] = {"name": args.name, "digest": _digest(key), "tenant": args.tenant or args.name}
    for name in ("models", "classes", "origins", "expires", "trusted", "metrics"):
        if getattr(args, name):
            table[name] = getattr(args, name)
    check_access([convert(table, KeyConfig)], args.classes)
    print("\n".join(["[[keys]]", *(f"{name} = {toml_value(value)}" for name, value in table.items()), ""]), flush=True)
    print(f"the key, which is shown this once and kept nowhere:\n{key}", file=sys.stderr)
    return 0


def _digest(key: str) -> str:
    return "sha256:" + sha256(key.encode()).hexdigest()


def _asked() -> str:
    """Not an argument: those can be read by whoever lists processes, and stay in a shell's history."""
    key = (getpass.getpass("key: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
    if not _KEY.fullmatch(key):
        raise UserError("a key is up to 512 visible letters of ASCII, on one line")
    return key
