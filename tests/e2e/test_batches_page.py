"""docs/batches.md is true: its settings are those that there are, and its lines are what it says they are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from stepwell.core.config_store import StoreConfig
from stepwell.sim.scenario import read_scenario
from stepwell.tests.architecture_rules import ROOT

PAGE = (ROOT / "docs" / "batches.md").read_text()


def test_the_settings_are_those_that_there_are(tmp_path: Path) -> None:
    (settings,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    file = tmp_path / "store.toml"
    file.write_text(settings)
    assert read_scenario(str(file), overrides=(), environ={}).config.store == StoreConfig()
    assert list(tomllib.loads(settings)["store"]) == list(StoreConfig.__struct_fields__)


def test_the_numbers_in_the_text_are_the_defaults() -> None:
    limits = StoreConfig()
    assert f"{limits.lines_in_flight} of the 256" in PAGE
    assert limits.windows == ("24h",)
