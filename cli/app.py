"""Finds the command, hands it its arguments, and turns every way it can end into one line and an exit status.

Exit status: 0 done; 1 the answer is no (a replay that differs, a configuration that is wrong); 2 bad input or no room;
3 a bug in Stepwell; 130 interrupted; 141 the reader of the output went away.

A command is a module of this room with ``HELP``, ``EXAMPLES``, ``arguments(parser)`` and ``run(args)``.  It is imported
only when it is asked for, so that ``stepwell --help`` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Protocol, cast

import stepwell
from stepwell.cli.logs import LEVELS, set_level
from stepwell.core.build_kind import build_kind
from stepwell.core.errors import CapacityError, InvariantError, PolicyError, StepwellError

COMMANDS = {
    "serve": "serve a model over HTTP and WebSockets",
    "admin": "operate a running server: pause, drain, abort, settings, live decisions",
    "sim": "simulate a workload under one policy or several, and compare",
    "workload": "describe a workload or a trace, in the terminal or as a picture",
    "compare": "compare policies over loads and seeds, with intervals, and find the rate that holds the objectives",
    "demo": "simulate the built-in workload under every policy, with a table and a picture",
    "replay": "decide a recorded run again: name what differs, or what another policy would have changed",
    "advise": "say which policy and options meet the objectives best on recorded traffic",
    "calibrate": "fit the cost model to what steps of live journals took",
    "fidelity": "run the real engine, predict it in the simulator, and say how well that went",
    "journal": "show what a journal records, or count it",
    "report": "draw and write up a comparison, as one HTML page",
    "trace": "write a journal as a timeline for Perfetto",
    "explain": "tell one request's story from a journal",
    "config": "check or show a configuration",
    "keys": "make keys for the clients of a server",
    "policies": "list policies and other plugins, or describe one",
    "cost": "show what a cost model predicts, the devices and models that it knows, and how far off it is",
    "bench": "measure the scheduler, the simulator or a serving engine on this machine",
}

EXAMPLES = """\
examples:
  stepwell demo                                     what it is about, in a minute
  stepwell sim --policy fcfs --policy swap          two policies on the same requests
  stepwell sim --trace azure.csv --journal run.jsonl
  stepwell compare --policy fcfs --policy swap --load 0.9 --seeds 5
  stepwell explain run.jsonl --request 117          why did this one take so long?
  stepwell COMMAND --help                           more about a command
"""

OK, NO, BAD_INPUT, BUG, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 130, 141


class Command(Protocol):
    """What a command's module has."""

    HELP: str
    EXAMPLES: str

    def arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


class Parser(argparse.ArgumentParser):
    """Answers a mistake with one line instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def run(argv: Sequence[str]) -> int:
    """Run the command in ``argv`` (without the program's name); returns the exit status."""
    try:
        status = _dispatch(list(argv))
        sys.stdout.flush()
        return status
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else OK
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Nobody reads any more; what is still buffered must not fail once again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (InvariantError, AssertionError) as error:
        return _bug(error)
    except CapacityError as error:
        _say(f"{error} [{error.code}]")
        return BAD_INPUT
    except PolicyError as error:
        _say(f"{error}. This is for the policy's author to mend")
        return BAD_INPUT
    except StepwellError as error:
        _say(str(error))
        return BAD_INPUT
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _say(f"{where}{error.strerror or error}")
        return BAD_INPUT
    except Exception as error:
        return _bug(error)


def _dispatch(argv: list[str]) -> int:
    name = next((each for each in argv if not each.startswith("-")), "")
    root = _root()
    if not name or argv[0].startswith("-"):
        root.parse_args(argv)
        root.print_help(sys.stderr)
        return BAD_INPUT
    if name not in COMMANDS:
        from stepwell.core.schema import nearest  # lazy: start-up

        guess = nearest(name, COMMANDS)
        hint = f"; did you mean {guess!r}?" if guess else "."
        root.error(f"unknown command {name!r}{hint} Commands: {', '.join(COMMANDS)}")
    command = cast(Command, importlib.import_module(f"stepwell.cli.{name}"))
    parser = Parser(
        prog=f"stepwell {name}",
        description=command.HELP,
        epilog=command.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.arguments(parser)
    _explain_parts(parser, command.EXAMPLES)
    parser.add_argument("--log-level", choices=LEVELS, default="warning", help="what to log on stderr (warning)")
    args = parser.parse_args(argv[1:])
    set_level(args.log_level)
    return command.run(args)


def _explain_parts(parser: argparse.ArgumentParser, examples: str) -> None:
    """Give ``stepwell COMMAND PART --help`` a description and examples: its own of the command's."""
    shown, _, below = examples.partition("\n\n")
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        for line in action._choices_actions:
            part = action.choices[line.dest]
            own = [each for each in shown.splitlines() if f"{each} ".startswith(f"  {part.prog} ")]
            part.description = part.description or f"{(line.help or '')[:1].upper()}{(line.help or '')[1:]}."
            part.epilog = "\n".join(["examples:", *own, *(["", below] if below else [])])
            part.formatter_class = argparse.RawDescriptionHelpFormatter
            part.allow_abbrev = False


def _root() -> Parser:
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    root = Parser(
        prog="stepwell",
        usage="stepwell COMMAND [options]",
        description=f"{stepwell.__doc__}\n\ncommands:\n{listed}",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=_version())
    return root


def _version() -> str:
    return f"stepwell {stepwell.__version__} ({build_kind()} core)"


def _say(text: str) -> None:
    print(f"stepwell: {' '.join(text.split())}", file=sys.stderr)


def _bug(error: BaseException) -> int:
    """Keep the evidence, and say where it is."""
    text = "".join(traceback.format_exception(error))
    try:
        handle, name = tempfile.mkstemp(prefix="stepwell-bug-", suffix=".log")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(f"{_version()}, {sys.version}\n{' '.join(sys.argv)}\n\n{text}")
        where = f"the evidence is in {Path(name)}"
    except OSError:
        where = "and the evidence could not be written:\n" + text
    print(
        f"stepwell: this is a bug in Stepwell, not a mistake of yours: {type(error).__name__}: {error}; {where}",
        file=sys.stderr,
    )
    return BUG
