"""The answer in three sentences, what is to be trusted, and how to repeat it: words only, taken from the numbers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from stepwell.sim.compare.result import Difference, Knee, Point
from stepwell.sim.report.lookup import ALL, ATTAINMENT, GOODPUT, Found
from stepwell.sim.report.numbers import percent, rate, spoken

PRICES = ("output_tokens_per_s", "ttft_p99_ms", "tpot_p99_ms", "e2e_mean_ms", "e2e_p99_ms", "goodput_per_s")
"""Where a winner may lose."""


def answer(found: Found) -> list[str]:
    """Which contender wins on what and by how much; whether that is real; what it carries and costs."""
    if not any(found.row(each, found.focus, found.judged) for each in found.labels):
        return ["No run ended well, so there is nothing to compare: see what failed, below."]
    if len(found.labels) == 1:
        return _alone(found)
    winner, rival, metric = found.verdict()
    return [_who(found, winner, rival, metric), _real(found, winner, rival, metric), _carries(found, winner)]


def place(found: Found, point: Point) -> str:
    """``load 0.9 (14.7 requests/s)``."""
    if point.rate_per_s is None:
        return f"the workload's own rate ({rate(found.rate(point), found.comparison.rate_unit)})"
    told = rate(point.rate_per_s, found.comparison.rate_unit)
    return f"{point.label} ({told})" if point.load is not None else told


def _does(found: Found, label: str, metric: str) -> str:
    row = found.row(label, found.focus, metric)
    if row is None:
        return f"of {label} nothing is known"
    value = spoken(found.metric(metric), row.mean)
    if metric == ATTAINMENT:
        return f"{label} meets the objectives of {value} of {_promised(found)}"
    if metric == GOODPUT:
        return f"{label} has a goodput of {value}"
    return f"{label} answers a request in {value} on average"


def _promised(found: Found) -> str:
    """The requests that have objectives: ``requests``, or ``chat requests`` where other classes have none."""
    names = [each.name for each in found.axes.classes if each.ttft_ms or each.tpot_ms]
    return "requests" if len(names) in (0, len(found.axes.classes)) else f"{' and '.join(names)} requests"


def _who(found: Found, winner: str, rival: str, metric: str) -> str:
    role = "the baseline" if rival == found.baseline else "the next best"
    mine, theirs = (found.row(each, found.focus, metric) for each in (winner, rival))
    text = f"At {place(found, found.focus)} {_does(found, winner, found.judged)}"
    if mine is not None and theirs is not None and mine.mean == theirs.mean:
        return f"{text}, and {rival}, {role}, does exactly as well."
    if metric != found.judged:
        text += f", as {rival} does; {_does(found, winner, metric)}"
    if mine is not None and theirs is not None:
        value = spoken(found.metric(metric), theirs.mean)
        text += f", {_gap(found, metric, mine.mean - theirs.mean, theirs.mean)} than {rival} ({role}: {value})"
    firsts = sum(found.best(point, metric) == winner for point in found.points)
    if len(found.points) > 1:
        text += f"; it is best at {firsts} of the {len(found.points)} rates tried"
    return text + "."


def _gap(found: Found, metric: str, gap: float, base: float) -> str:
    """How far apart, in the metric's own words."""
    if metric == ATTAINMENT:
        return f"{abs(100 * gap):.1f} percentage points {'more' if gap > 0 else 'less'}"
    size = percent(abs(gap) / base).lstrip("+−") if base else spoken(found.metric(metric), gap)
    return f"{size} {'less' if gap < 0 else 'more'}"


def _real(found: Found, winner: str, rival: str, metric: str) -> str:
    other, sign = (winner, 1) if winner != found.baseline else (rival, -1)
    it = found.difference(other, found.focus, metric)
    if it is None or it.low is None or it.high is None:
        return "Whether that is more than chance cannot be told from one short run: compare over several seeds."
    low, high = sorted((sign * it.low, sign * it.high))
    factor, unit, digits = {ATTAINMENT: (100, " points", 1), GOODPUT: (1, "/s", 2)}.get(metric, (1, " ms", 1))
    span = f"{low * factor:+,.{digits}f} to {high * factor:+,.{digits}f}{unit}".replace("-", "−")
    over = f"{it.count} seeds" if it.method == "seeds" else f"{it.count} sections of one run"
    if it.low == it.high == 0:
        return f"Under the same requests, over {over}, there is no difference at all in that."
    if it.real:
        text = f"The difference is real: under the same requests, over {over}, its 95 % interval is {span}"
    else:
        text = f"The difference may be chance: over {over} its 95 % interval is {span}, which holds 0"
    ranking = found.ranking(found.focus, metric)
    first = next((each for each in ranking.order if each.contender == winner), None) if ranking is not None else None
    if it.real and it.method == "seeds" and first is not None and first.worst == 1:
        text += f", and {winner} comes first with every seed"
    return text + "."


def _carries(found: Found, winner: str) -> str:
    """Up to which rate it holds its objectives, and where it is really worse than the baseline, at the focus."""
    price = f"at {place(found, found.focus)} {_price(found, winner)}"
    mine, base = found.knee(winner), found.knee(found.baseline)
    if mine is None:
        return f"{price[0].upper()}{price[1:]}."
    text = f"{winner} {_holds(found, mine)}"
    if base is not None and winner != found.baseline:
        text += f", {found.baseline} {_holds(found, base)}"
    share = found.axes.slo_share
    what = f" for {100 * share:g} % of {'requests' if mine.scope == ALL else mine.scope}" if share else ""
    return f"The objectives hold{what} as follows: {text}; {price}."


def _holds(found: Found, knee: Knee) -> str:
    bounds = {each.bound for each in knee.seeds}
    if bounds == {"below"}:
        return "at no rate tried"
    return f"{'to beyond' if 'above' in bounds else 'up to'} {rate(knee.mean, found.comparison.rate_unit)}"


def _price(found: Found, winner: str) -> str:
    if winner == found.baseline:
        better = _better(found)
        nobody = "no other is really better at anything"
        return f"others are really better at {' and '.join(better[:2])}" if better else nobody
    worse = sorted(_worse(found, winner), key=lambda it: -abs(it.relative or 0))
    if not worse:
        return f"nothing that was measured is really worse than with {found.baseline}"
    told = [_worsening(found, each) for each in worse[:2]]
    more = f" (and {len(worse) - 2} more: see the differences)" if len(worse) > 2 else ""
    return f"the price is {' and '.join(told)}{more}"


def _worse(found: Found, label: str) -> Iterator[Difference]:
    scopes = [each for each in found.axes.scopes if each != ALL] or [ALL]
    for name in PRICES:
        for scope in scopes if found.metric(name).scoped else [ALL]:
            it = found.difference(label, found.focus, name, scope)
            if it is not None and it.better is False:
                yield it


def _better(found: Found) -> list[str]:
    """Where some other is really better than the baseline, most first."""
    told = [
        it
        for label in found.labels
        for name in PRICES
        for it in [found.difference(label, found.focus, name)]
        if it is not None and it.better
    ]
    told.sort(key=lambda it: -abs(it.relative or 0))
    return [f"{_worsening(found, each)} ({each.contender})" for each in told]


def _worsening(found: Found, it: Difference) -> str:
    metric = found.metric(it.metric)
    of = "" if it.scope == ALL else f" of {it.scope}"
    return f"{metric.label}{of} {percent(it.relative)}"


def _alone(found: Found) -> list[str]:
    (label,) = found.labels
    sentences = [f"At {place(found, found.focus)} {_does(found, label, found.judged)}."]
    first, last = (found.row(label, found.focus, name) for name in ("ttft_p99_ms", "e2e_mean_ms"))
    if first is not None and last is not None:
        early, late = (spoken(found.metric(each.metric), each.mean) for each in (first, last))
        sentences.append(
            f"99 % of requests see their first token within {early}; a whole answer takes {late} on average."
        )
    knee = found.knee(label)
    sentences.append(
        f"It holds the objectives {_holds(found, knee)}."
        if knee is not None
        else "There is no other contender, so nothing is said of which policy is better."
    )
    return sentences


def trust(found: Found) -> list[str]:
    """What is exact, what is predicted, and how far the predictions reach beyond what was measured."""
    said = [
        "Exact: who waits, who runs, who gives way, every page and every token count. The simulator runs the scheduler"
        " that serves, line for line, on the same journal.",
        "Predicted: how long each step takes on the device, by the cost model of the configuration below. Every time"
        " and every rate here follows from that.",
    ]
    share, error = found.extrapolated(), found.step_error()
    if share is None:
        said.append(
            "The cost model was fitted to no measurement of yours, so nobody knows how far its times are off: compare"
            " what they say of policies, and let `stepwell calibrate` fit one before you trust a number of seconds."
        )
    else:
        said.append(f"{100 * share:.1f} % of steps had a shape beyond what the cost model was fitted to.")
        if error is not None:
            said.append(f"Of the others, nine in ten are within {100 * error:.1f} % of what was measured.")
    count = len(found.axes.seeds)
    if count > 1:
        said.append(
            f"Intervals are 95 %, over {count} seeds; contenders meet the same requests, so differences are taken seed"
            " by seed, and are known better than the values themselves."
        )
    else:
        said.append(
            "There is one seed: intervals, where there are any, come from sections of that one run, and say nothing of"
            " other workloads of the kind."
        )
    return said


def command(found: Found) -> str:
    """What repeats the whole comparison, as far as a command line can say it."""
    it, axes = found.comparison, found.axes
    words = ["stepwell", "compare", *([it.scenario] if it.scenario else [])]
    for flag, names in (
        ("--policy", [each.policy for each in axes.contenders]),
        ("--allocator", [each.allocator for each in axes.contenders]),
    ):
        words += [word for name in dict.fromkeys(names) for word in (flag, name)]
    for point in axes.points:
        if point.load is not None:
            words += ["--load", f"{point.load:g}"]
        elif point.rate_per_s is not None:
            words += ["--rate", f"{point.rate_per_s:g}"]
    if len(axes.seeds) > 1:
        words += ["--seeds", str(len(axes.seeds))]
    words += ["--baseline", axes.baseline]
    if axes.slo_share is not None:
        words += ["--slo-share", f"{axes.slo_share:g}"]
    return shlex.join([*words, *(word for each in _by_hand(found) for word in ("--set", each))])


_VARIED = ("scheduler.policy=", "memory.allocator=", "scheduler.seed=", "workload.settings.seed=", "workload.rate=")


def _by_hand(found: Found) -> list[str]:
    """What every run was told that is no part of what was compared."""
    cells = found.comparison.cells
    common = [each for each in cells[0].overrides if all(each in cell.overrides for cell in cells)] if cells else []
    options = {
        f"{section}.options.{key}"
        for contender in found.axes.contenders
        for section, told in (("scheduler", contender.options), ("memory", contender.allocator_options))
        for key in told
    }
    return [each for each in common if not each.startswith(_VARIED) and each.partition("=")[0] not in options]
