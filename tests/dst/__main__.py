"""``python -m stepwell.tests.dst --seed 1234``: live one scenario again, and say which law it breaks."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from stepwell.tests.dst import run
from stepwell.tests.dst.draw import scenario_of
from stepwell.tests.dst.scenario import Scenario, decode, encode
from stepwell.tests.dst.shrink import size, smallest


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m stepwell.tests.dst", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="the scenario of this seed")
    what.add_argument("--seeds", metavar="FROM:TO", help="those of all of these; stops at the first that fails")
    what.add_argument("--scenario", type=Path, metavar="FILE", help="one that was written down (--write, --shrink)")
    parser.add_argument(
        "--shrink", action="store_true", help="drop what is not needed for it to fail, and write that down"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the scenario down, as JSON")
    parser.add_argument("--journal", type=Path, metavar="DIR", help="keep the journal in this folder")
    parser.add_argument("--verbose", action="store_true", help="show what the engine logs")
    args = parser.parse_args(arguments)
    if not args.verbose:
        structlog.configure(processors=[run.drop])
    if args.seeds:
        return many(*map(int, args.seeds.split(":")))
    scenario = scenario_of(args.seed) if args.scenario is None else decode(args.scenario.read_bytes())
    if args.write:
        args.write.write_bytes(encode(scenario))
    if args.journal:
        args.journal.mkdir(parents=True, exist_ok=True)
    failure = run.failure_of(scenario, args.journal, twice=True)
    print(f"{size(scenario)}, {scenario.house}")
    if failure is None:
        print("every law holds")
        return 0
    traceback.print_exception(failure)
    if args.shrink:
        shrunk(scenario, failure)
    return 1


def many(first: int, beyond: int) -> int:
    start_s = time.perf_counter()
    with TemporaryDirectory(prefix="stepwell-dst-") as name:
        try:
            run.hold_seeds(first, beyond, Path(name))
        except Exception as error:
            traceback.print_exception(error)
            return 1
    print(f"{beyond - first} lives, every law holds, {time.perf_counter() - start_s:.1f} s")
    return 0


def shrunk(scenario: Scenario, failure: Exception) -> None:
    small, error = smallest(scenario, failure)
    path = Path(f"dst-{scenario.seed}.json")
    path.write_bytes(encode(small))
    print(f"\n{size(small)} still fail: {type(error).__name__}: {error}")
    print(f"{encode(small).decode()}\nrepeat with: python -m stepwell.tests.dst --scenario {path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
