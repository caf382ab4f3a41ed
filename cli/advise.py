"""``stepwell advise``: which policy and options would meet the objectives best on recorded traffic."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from stepwell.cli.progress import Bars
from stepwell.cli.tables import console, plain_table, share, time_of
from stepwell.core.errors import UserError
from stepwell.sim.calibration.fits import FITS
from stepwell.sim.compare.runners import MOST_JOBS
from stepwell.sim.whatif.advice import Advice, Headroom, Standing, toml_of
from stepwell.sim.whatif.advise import LATEST, MINUTES, SHARE, advise
from stepwell.sim.whatif.times import MODEL
from stepwell.sim.whatif.traffic import read_traffic
from stepwell.sim.wording import many

HELP = """\
Serve recorded traffic again in the simulator under every policy, and say which one, with which options, meets the
objectives best; with evidence, and with the lines to put into the configuration.
Exit status 1 if nothing that was tried meets them: what limits is told then, and the rate that would hold."""

EXAMPLES = """\
examples:
  stepwell advise night.jsonl --slo chat.ttft_ms=500 --slo chat.tpot_ms=50
  stepwell advise monday.jsonl tuesday.jsonl --share 0.99 --out advice/
  stepwell advise night.jsonl --policy chat-batch --policy sarathi --latest 500
  stepwell advise vllm.log --cost cost.toml --set memory.pages=4000 --slo chat.ttft_ms=800

A journal says what runs now, and how long its steps took.  For a vLLM log both have to be told: the policy `vllm` runs
unless --config says otherwise.  docs/what_if.md says how far to trust it.
"""

_SHOWN = 12


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="JOURNAL|LOG", help="journals, or logs of vLLM")
    ask = parser.add_argument_group("what is wanted")
    ask.add_argument(
        "--slo", action="append", default=[], metavar="CLASS.KEY=MS", help="an objective: chat.ttft_ms=500; repeat it"
    )
    ask.add_argument("--share", type=float, default=SHARE, metavar="X", help=f"so many are to meet theirs ({SHARE:g})")
    ask.add_argument("--policy", action="append", default=[], metavar="NAME", help="try only this one; repeat it (all)")
    now = parser.add_argument_group("what runs now")
    now.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any value, as memory.pages=3000")
    now.add_argument("--cost", type=Path, metavar="FILE", help="step times: a file with [cost] (calibrate --out)")
    now.add_argument("--config", type=Path, metavar="FILE", help="its configuration, for a log")
    now.add_argument("--fit", choices=list(FITS), default=MODEL, help=f"fitted where no step was measured ({MODEL})")
    how = parser.add_argument_group("how")
    how.add_argument("--latest", type=int, default=LATEST, metavar="N", help=f"the last N requests, 0: all ({LATEST})")
    how.add_argument("--minutes", type=float, default=MINUTES, metavar="M", help=f"begin nothing after ({MINUTES:g})")
    how.add_argument("--jobs", type=int, default=0, metavar="N", help="processes (0: one a core)")
    how.add_argument("--out", type=Path, metavar="DIR", help="keep advice.json, advice.toml, traffic and finished runs")
    how.add_argument("--json", action="store_true", help="all of it as JSON")


def run(args: argparse.Namespace) -> int:
    _check(args)
    with Bars() as bars:
        traffic = read_traffic(
            args.files,
            overrides=[*(f"classes.{each}" for each in args.slo), *args.set],
            scenario=args.config,
            cost=args.cost,
            latest=args.latest,
            model=args.fit,
            environ=os.environ,
            told=lambda records: bars("reading", records, 0),
        )
        with _folder(args.out) as folder:
            found = advise(
                traffic,
                folder=folder,
                policies=args.policy,
                share=args.share,
                keep=args.out is not None,
                jobs=args.jobs,
                minutes=args.minutes,
                progress=bars,
            )
    if args.out is not None:
        (args.out / "advice.json").write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
        (args.out / "advice.toml").write_text(found.toml, encoding="utf-8")
    if args.json:
        print(msgspec.json.encode(found).decode())
    else:
        print_advice(found, console())
    return 1 if found.verdict == "none" else 0


def _check(args: argparse.Namespace) -> None:
    for each in args.slo:
        name, dot, rest = each.partition(".")
        key, equals, _ = rest.partition("=")
        if not (name and dot and equals) or key.strip() not in ("ttft_ms", "tpot_ms"):
            raise UserError(f"is written CLASS.ttft_ms=MS or CLASS.tpot_ms=MS, not {each!r}", field="slo")
    for each in args.set:
        section = each.partition(".")[0].strip()
        if section in ("workload", "journal", "server", "wire", "model"):
            raise UserError("cannot be set here: the requests are the recorded ones, and nothing is served", field=each)
    if args.latest < 0:
        raise UserError(f"must not be negative, got {args.latest}", field="latest")
    if not 0 < args.minutes <= 1e6:
        raise UserError(f"must be above 0, got {args.minutes:g}", field="minutes")
    if not 0 <= args.jobs <= MOST_JOBS:
        raise UserError(f"must be between 0 (one a core) and {MOST_JOBS}, not {args.jobs}", field="jobs")


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """Where the traffic is put for the processes: ``out``, or a folder that goes away again."""
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write to {out}: {error.strerror or error}", field="out") from None
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="stepwell-advise-") as name:
        yield Path(name)


def print_advice(found: Advice, to: Console) -> None:
    """The standings, the reasons, and the lines for the configuration."""
    part = f"the last {found.requests} of " if found.requests < found.requests_in_all else ""
    head = f"{', '.join(found.sources)}: {part}{many(found.requests_in_all, 'request')}, {found.rate_per_s:.3g}/s"
    to.print(Text(head, "bold"), soft_wrap=True)
    to.print(_sentence(found.step_times), soft_wrap=True)
    for note in found.notes:
        to.print(f"note: {note}", soft_wrap=True)
    to.print(f"objectives: {_objectives(found)}; {share(found.share)} are to meet them", soft_wrap=True)
    to.print()
    to.print(_table(found))
    hidden = len(found.standings) - _SHOWN
    if hidden > 0:
        to.print(f"and {hidden} more behind these; --json has all of them")
    summary = found.standings[0].summary
    if summary.measured_share is not None or summary.extrapolated_share is not None:
        measured, beyond = share(summary.measured_share), share(summary.extrapolated_share)
        told = f"{found.best}: {measured} of its steps have measured times, {beyond} lie beyond everything measured"
        to.print(told, soft_wrap=True)
    to.print()
    for reason in found.reasons:
        to.print(f"- {reason}", soft_wrap=True)
    to.print()
    stays = found.toml == toml_of(found.standing(found.now).contender)
    to.print(Text("nothing to change; what runs now:" if stays else "put into the configuration:", "bold"))
    to.print(found.toml, end="", soft_wrap=True)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _objectives(found: Advice) -> str:
    told = []
    for each in found.classes:
        limits = [f"{name} {ms:g} ms" for name, ms in (("TTFT", each.ttft_ms), ("TPOT", each.tpot_ms)) if ms]
        told.append(f"{each.name} {' and '.join(limits)}" if limits else f"{each.name} none")
    return ", ".join(told)


def _table(found: Advice) -> object:
    names = [each.name for each in found.classes if each.ttft_ms or each.tpot_ms]
    several = names if len(names) > 1 else []
    table = plain_table("", "attained", *several, "less now", "goodput", "E2E mean", "holds up to")
    shown = found.standings[:_SHOWN]
    if found.now not in [each.contender.label for each in shown]:
        shown = [*shown, found.standing(found.now)]
    for each in shown:
        label = each.contender.label
        table.add_row(
            Text(label, "bold" if label in (found.best, found.now) else ""),
            Text(share(each.attainment), "green" if each.meets else ""),
            *(share(each.attained.get(name)) for name in several),
            _apart(each),
            f"{each.summary.all.goodput_per_s:.2f} /s",
            time_of(each.summary.all.e2e_ms.mean),
            _room(each.headroom),
        )
    return table


def _apart(each: Standing) -> str:
    it = each.distance
    if it is None:
        return ""
    if it.low is None or it.high is None:
        return f"{100 * it.mean:+.1f} %"
    mark = ("▲" if it.mean > 0 else "▼") if it.real else "="
    return f"{100 * it.mean:+.1f} ±{100 * (it.high - it.mean):.1f} % {mark}"


def _room(it: Headroom | None) -> str:
    if it is None:
        return ""
    if it.bound == "below":
        return "nothing"
    return f"{'≥ ' if it.bound == 'above' else ''}×{it.factor:.2f}"
