"""What advice is made of, as data; written as JSON, and shown by the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from stepwell.core.config import ClassConfig
from stepwell.core.config_load import toml_value
from stepwell.sim.compare.records import Contender
from stepwell.sim.summary import Summary

VERSION = 1

Verdict = Literal["keep", "change", "unclear", "none"]
"""``keep``: what runs now meets the objectives, and nothing is really better.  ``change``: the best meets them, and is
really better.  ``unclear``: the best meets them and what runs now does not, but the difference may be chance.
``none``: no contender meets them."""


class Distance(msgspec.Struct, frozen=True):
    """SLO attainment less that of what runs now, request by request; the interval allows for how many were tried.

    ``real``: it leaves out 0; None where there are too few requests for one.
    """

    mean: float
    low: float | None
    high: float | None
    real: bool | None

    @property
    def better(self) -> bool:
        return bool(self.real) and self.mean > 0


class Headroom(msgspec.Struct, frozen=True):
    """``rate_per_s`` held the objectives in the simulator, ``factor`` times as many requests as were recorded.

    ``bound``: ``above`` if it held at every rate tried, ``below`` if at none (the rate is 0 then).
    """

    rate_per_s: float
    factor: float
    bound: Literal["found", "below", "above"]


class Standing(msgspec.Struct, frozen=True):
    """A contender and what came of the recorded traffic under it.  ``attained``: of each class with objectives."""

    contender: Contender
    summary: Summary
    attained: Mapping[str, float]
    meets: bool
    distance: Distance | None = None
    headroom: Headroom | None = None

    @property
    def attainment(self) -> float:
        return self.summary.all.slo_attainment or 0.0


class Relief(msgspec.Struct, frozen=True):
    """The best contender with more of something: what its attainment would be."""

    key: str
    before: int
    after: int
    attainment: float


class Advice(msgspec.Struct, frozen=True):
    """``standings`` begin with the best.  ``toml`` is what to put into the configuration.

    ``saturated_per_s``: as fast as what runs now completes requests when all are there at once.
    """

    version: int
    stepwell: str
    sources: list[str]
    requests: int
    requests_in_all: int
    rate_per_s: float
    saturated_per_s: float | None
    classes: list[ClassConfig]
    share: float
    now: str
    best: str
    verdict: Verdict
    standings: list[Standing]
    reliefs: list[Relief]
    reasons: list[str]
    toml: str
    step_times: str
    notes: list[str]

    def standing(self, label: str) -> Standing:
        return next(each for each in self.standings if each.contender.label == label)


def toml_of(it: Contender) -> str:
    """The lines of a configuration that make it decide so."""
    lines = ["[scheduler]", f"policy = {toml_value(it.policy)}"]
    if it.options:
        lines += ["", "[scheduler.options]", *(f"{key} = {toml_value(value)}" for key, value in it.options.items())]
    lines += ["", "[memory]", f"allocator = {toml_value(it.allocator)}"]
    if it.allocator_options:
        lines += ["", "[memory.options]"]
        lines += [f"{key} = {toml_value(value)}" for key, value in it.allocator_options.items()]
    return "\n".join(lines) + "\n"
