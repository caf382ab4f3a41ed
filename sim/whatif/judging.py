"""From what came of every contender to a verdict, with its reasons in words."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.sim.compare.cell import SECTION_REQUESTS
from stepwell.sim.compare.records import Difference
from stepwell.sim.compare.statistics import CONFIDENCE, LEAST_SECTIONS, t_quantile
from stepwell.sim.whatif.advice import Distance, Relief, Standing, Verdict

GAIN = 0.01
"""Attainment that something must add to be named as what limits."""

_WHAT = {
    "memory.pages": "KV pages",
    "scheduler.token_budget": "the tokens of a step",
    "scheduler.running_limit": "seats",
}


def distance(it: Difference, tried: int) -> Distance:
    """The difference with an interval that holds for all ``tried`` contenders together (Bonferroni): the best of many
    is the luckiest too."""
    if it.low is None or it.high is None:
        return Distance(it.mean, None, None, None)
    freedom = it.count - 1
    wider = t_quantile(freedom, 1 - (1 - CONFIDENCE) / max(1, tried)) / t_quantile(freedom)
    half = (it.high - it.low) / 2 * wider
    low, high = it.mean - half, it.mean + half
    return Distance(it.mean, low, high, low > 0 or high < 0)


def ranked(standings: Sequence[Standing], now: str) -> list[Standing]:
    """Those that meet the objectives first, then by attainment; of equal ones what runs now, then by goodput."""
    return sorted(
        standings,
        key=lambda it: (
            not it.meets,
            -round(it.attainment, 6),
            it.contender.label != now,
            -it.summary.all.goodput_per_s,
        ),
    )


def verdict(best: Standing, now: Standing) -> Verdict:
    """See ``Verdict``."""
    if not best.meets:
        return "none"
    if best is now:
        return "keep"
    if best.distance is not None and best.distance.better:
        return "change"
    return "keep" if now.meets else "unclear"


def reasons(found: Verdict, best: Standing, now: Standing, share: float, requests: int) -> list[str]:
    """Sentences, the most important one first."""
    label, wanted = best.contender.label, _percent(share)
    told = []
    if found == "keep":
        told.append(f"{now.contender.label} meets the objectives ({_attained(now)}; {wanted} are wanted): keep it")
    elif found == "change":
        told.append(f"{label} meets the objectives ({_attained(best)}; {wanted} are wanted) and is really better")
    elif found == "unclear":
        told.append(
            f"{label} meets the objectives ({_attained(best)}) and {now.contender.label} does not ({_attained(now)}),"
            " but the difference may be chance"
        )
    else:
        told.append(f"nothing that was tried meets the objectives: {label} comes closest ({_attained(best)})")
    told += _difference(best, now, requests)
    for each in (now, best) if best is not now else (now,):
        told += _room(each)
    return told


def _difference(best: Standing, now: Standing, requests: int) -> list[str]:
    it = best.distance
    if best is now or it is None:
        return []
    if it.low is None or it.high is None:
        least = LEAST_SECTIONS * SECTION_REQUESTS
        return [f"{requests} requests are too few to tell a difference from chance: {least} are needed"]
    told = f"{100 * it.mean:+.1f} % of the requests ({100 * it.low:+.1f} to {100 * it.high:+.1f})"
    if it.real:
        return [f"{best.contender.label} against {now.contender.label}: {told}"]
    return [f"{best.contender.label} against {now.contender.label}: {told}, which is not told apart from no difference"]


def _room(it: Standing) -> list[str]:
    room = it.headroom
    if room is None:
        return []
    if room.bound == "below":
        return [f"{it.contender.label} holds the objectives at no rate that was tried, however low"]
    rate = f"{room.rate_per_s:.3g}/s" + (" or more" if room.bound == "above" else "")
    return [f"{it.contender.label} holds them up to {room.factor:.2f} times the recorded rate ({rate})"]


def limits(best: Standing, reliefs: Sequence[Relief], rate_per_s: float, saturated_per_s: float | None) -> list[str]:
    """What keeps the best from meeting the objectives, and the rate at which it would."""
    told = []
    if saturated_per_s is not None and rate_per_s > saturated_per_s:
        told.append(
            f"the load is beyond capacity: {rate_per_s:.3g} requests/s arrive, at most {saturated_per_s:.3g}/s complete"
        )
    helpful = [each for each in reliefs if each.attainment >= best.attainment + GAIN]
    for each in sorted(helpful, key=lambda it: -it.attainment):
        told.append(
            f"{_WHAT.get(each.key, each.key)} limit: with {each.key} = {each.after} instead of {each.before}"
            f" {_percent(each.attainment)} would meet the objectives"
        )
    if reliefs and not helpful:
        told.append("twice the KV pages, tokens of a step or seats would not help: the device is what limits")
    room = best.headroom
    if room is not None and room.bound == "below":
        told.append("even a nearly idle device misses the objectives: they are tighter than it is fast")
    elif room is not None and room.bound == "found":
        told.append(f"{best.contender.label} would hold them at {room.rate_per_s:.3g} requests/s")
    return told


def _attained(it: Standing) -> str:
    return ", ".join(f"{name} {_percent(value)}" for name, value in it.attained.items())


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
