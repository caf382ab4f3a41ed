"""One scenario, as each run of a comparison has it: with a contender, a seed and a rate."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from stepwell.core.config import Config
from stepwell.core.config_load import Resolved, toml_value
from stepwell.core.registry import complete
from stepwell.sim.compare.records import Contender, Point, SeedWorkload
from stepwell.sim.scenario import load_workload, read_scenario, seed_overrides


class Scenarios:
    """Configurations by contender, seed and point.  ``seed`` None stands for the scenario's own."""

    def __init__(
        self, file: Path | None, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> None:
        self.file = file
        self._overrides = list(overrides)
        self._environ = environ
        self.base = self.read(self._overrides)
        self.notes: list[str] = []

    def overrides(self, contender: Contender | None, seed: int | None, point: Point | None) -> list[str]:
        """Upon the scenario's file.  What was asked for by hand is below a contender's own options."""
        told: list[str] = []
        if contender is not None:
            told += [f"scheduler.policy={contender.policy}", f"memory.allocator={contender.allocator}"]
        told += self._overrides
        if contender is not None:
            for section, options in (("scheduler", contender.options), ("memory", contender.allocator_options)):
                told += [f"{section}.options.{key}={toml_value(value)}" for key, value in options.items()]
        if seed is not None:
            told += seed_overrides(seed, self.base.config.workload)
        if point is not None and point.rate_per_s is not None:
            told.append(f"workload.rate={point.rate_per_s!r}")
        return told

    def read(self, overrides: Sequence[str]) -> Resolved:
        return read_scenario(self.file, overrides=overrides, environ=self._environ)

    def config(self, overrides: Sequence[str]) -> Config:
        """Complete, and right wherever it is run from: its trace is named from the root.  Raises ``UserError``."""
        resolved = self.read(overrides)
        self.notes += [note for note in resolved.notes if note not in self.notes]
        config = complete(resolved.config)
        if not config.workload.trace:
            return config
        trace = str(resolved.trace_path().resolve())
        return msgspec.structs.replace(config, workload=msgspec.structs.replace(config.workload, trace=trace))

    def workload(self, seed: int | None) -> SeedWorkload:
        """What the requests of a seed are, before any point scales them."""
        resolved = self.read(self.overrides(None, seed, None))
        made = load_workload(resolved)
        number = resolved.config.scheduler.seed if seed is None else seed
        rate_per_s = float(f"{made.profile().rate_per_s:.6g}")
        return SeedWorkload(number, made.digest(), len(made), rate_per_s, made.describe(), made.followers)

    def command(self, overrides: Sequence[str]) -> str:
        """What repeats a run by hand."""
        words = ["stepwell", "sim", *([str(self.file)] if self.file is not None else [])]
        for each in overrides:
            words += ["--set", each]
        return shlex.join(words)


def digest(config: Config, workload: SeedWorkload) -> str:
    """Of what is run: the configuration, the requests in the place of the trace's path."""
    named = msgspec.structs.replace(
        config, workload=msgspec.structs.replace(config.workload, trace=Path(config.workload.trace).name)
    )
    return hashlib.sha256(f"{named.digest} {workload.digest}".encode()).hexdigest()
