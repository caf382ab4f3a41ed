"""``stepwell replay --policy``: asks for a counterfactual, and shows it."""

from __future__ import annotations

import argparse

import msgspec
from rich.console import Console
from rich.text import Text

from stepwell.cli.progress import Bars
from stepwell.cli.tables import console, plain_table, share, time_of
from stepwell.core.errors import UserError
from stepwell.sim.calibration.fits import FITS
from stepwell.sim.whatif.counterfactual import Counterfactual, what_if
from stepwell.sim.whatif.differences import Effect, RequestDifference
from stepwell.sim.whatif.times import MODEL
from stepwell.sim.wording import named

CHANGES = ("policy", "allocator", "set")
"""Arguments that make a run another one."""

MODEL_CHOICES = list(FITS)

_KEYS = {"policy": "scheduler.policy", "allocator": "memory.allocator"}
_MARKS = {True: ("▲", "green"), False: ("▼", "red"), None: ("◆", "yellow")}


def ask(args: argparse.Namespace) -> int:
    """Run both simulations, and print what came of them."""
    with Bars() as bars:
        found = what_if(args.file, overrides_of(args), model=args.fit or MODEL, progress=bars)
    if args.json:
        print(msgspec.json.encode(found).decode())
    else:
        print_counterfactual(found, console())
    return 0


def overrides_of(args: argparse.Namespace) -> list[str]:
    """Raises ``UserError`` for a value that is given twice, or that no simulation of a record could follow."""
    overrides = []
    for name, key in _KEYS.items():
        if getattr(args, name):
            overrides.append(f"{key}={getattr(args, name)}")
            if any(each.partition("=")[0].strip() == key for each in args.set):
                raise UserError(f"give it by --{name} or by --set, not by both", field=key)
    for each in args.set:
        key = each.partition("=")[0].strip()
        if key.split(".")[0] in ("workload", "journal", "server", "wire", "model"):
            raise UserError("cannot be set here: the requests are the recorded ones, and nothing is served", field=key)
    return [*overrides, *args.set]


def print_counterfactual(found: Counterfactual, to: Console) -> None:
    """Where step times come from, a table a class, and the requests that win and lose most."""
    other = found.other
    to.print(
        Text(f"{found.journal}: {found.recorded_policy} in the record, {other.policy} instead", "bold"), soft_wrap=True
    )
    to.print(_told(found.step_times), soft_wrap=True)
    line = f"{share(found.coinciding)} of the steps of {other.policy} coincide with recorded ones"
    if found.extrapolated is not None:
        line += f"; {share(found.extrapolated)} lie beyond everything that was measured"
    to.print(line, soft_wrap=True)
    for note in found.notes:
        to.print(f"note: {note}", soft_wrap=True)
    scopes = list(dict.fromkeys(each.scope for each in found.differences.effects))
    for scope in scopes:
        to.print()
        to.print(Text("all requests" if scope == "all" else f"class {scope}", "bold"))
        to.print(_table(found, scope))
    to.print()
    to.print(
        "recorded: what happened. again: the same policy in the simulator; what it differs from the record is the"
        " error of the prediction. effect: the other policy less the same policy again, with one model of step times"
        " (▲ better, ▼ worse, ◆ differs: its 95 % interval leaves out 0; = not told apart). An effect that is smaller"
        " than the error may be the model's.",
        soft_wrap=True,
    )
    _extremes(found, to)


def _told(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _table(found: Counterfactual, scope: str) -> object:
    table = plain_table("", "recorded", "again", found.other.policy, "error", "effect", "")
    for each in found.differences.effects:
        if each.scope == scope and not (each.recorded is None and each.other is None):
            unit = each.metric.unit
            values = [value_of(unit, it) for it in (each.recorded, each.again, each.other)]
            table.add_row(each.metric.label, *values, signed(unit, each.error), signed(unit, each.effect), _mark(each))
    return table


def _mark(each: Effect) -> Text:
    if each.real is None or each.low is None or each.high is None:
        return Text("")
    mark, style = _MARKS[each.better] if each.real else ("=", "dim")
    unit = each.metric.unit
    return Text(mark, style).append(f" {signed(unit, each.low)} to {signed(unit, each.high)}", "dim")


def value_of(unit: str, value: float | None) -> str:
    """With the digits that matter, and its unit."""
    if value is None:
        return "–"
    if unit == "ms":
        return time_of(value) if value else "0 ms"
    if unit == "share":
        return f"{100 * value:.1f} %"
    return f"{value:.2f} /s" if unit == "/s" else f"{value:.0f}"


def signed(unit: str, value: float | None) -> str:
    """The same of a difference."""
    if value is None:
        return "–"
    if not value:
        return "0"
    return f"{'+' if value > 0 else '−'}{value_of(unit, abs(value))}"


def _extremes(found: Counterfactual, to: Console) -> None:
    differences = found.differences
    for title, rows in (("win most", differences.winners()), ("lose most", differences.losers())):
        if rows:
            to.print()
            to.print(Text(f"requests that {title} (E2E, the same policy again to {found.other.policy})", "bold"))
            to.print(_requests(rows))
    for ids, what in ((differences.lost, "no longer complete"), (differences.gained, "complete only now")):
        if ids:
            to.print(f"{len(ids)} {what}: {named(ids)}")


def _requests(rows: list[RequestDifference]) -> object:
    table = plain_table("request", "class", "prompt", "tokens", "recorded", "again", "other", "effect", "TTFT effect")
    for it in rows:
        table.add_row(
            str(it.request),
            it.klass,
            str(it.prompt_tokens),
            str(it.tokens),
            *map(time_of, it.e2e_ms),
            signed("ms", it.effect_ms),
            signed("ms", it.ttft_ms[2] - it.ttft_ms[1]),
        )
    return table
