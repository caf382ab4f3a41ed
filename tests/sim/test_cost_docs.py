"""docs/cost_models.md says what the code does."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from statistics import median

from stepwell.core.config import CostConfig
from stepwell.core.protocols import BatchShape
from stepwell.core.registry import make_cost_model
from stepwell.sim.cost.models import MODELS
from stepwell.sim.cost.published import PUBLISHED, Published
from stepwell.sim.cost.setup import RooflineOptions
from stepwell.sim.cost.table import Table

PAGE = (Path(__file__).parents[2] / "docs" / "cost_models.md").read_text(encoding="utf-8")


def rows() -> list[str]:
    """How far off the predictions are, by what was predicted."""

    def group(each: Published) -> str:
        if MODELS[each.model].experts:
            return "models with experts, 2023 to 2025"
        if each.prefill_tokens:
            return "one prompt, time to the first token, vLLM 0.30"
        if each.present:
            return "decoding, dense, vLLM 0.21 to 0.30 of 2026, the two fitted points left out"
        return "decoding, dense, older engines and NIM 1.8, or prompts of unknown length"

    groups: dict[str, list[float]] = {}
    for each in PUBLISHED:
        if not each.fitted:
            groups.setdefault(group(each), []).append(each.deviation)
    return [f"| {name} | {len(off)} | {median(off):+.1%} | {max(off, key=abs):+.1%} |" for name, off in groups.items()]


def test_the_page_tells_how_far_off_it_is() -> None:
    for row in rows():
        assert row in PAGE, "\n".join(["write these into docs/cost_models.md:", *rows()])


def test_the_page_names_every_option_of_roofline_and_table() -> None:
    for name in RooflineOptions.__struct_fields__:
        assert f"`{name}`" in PAGE, name
    for name in ("base_ns", "decode", "prefill", "swap_page_ns", "file"):
        assert name in Table.Options.__struct_fields__
        assert name in PAGE


def test_the_pages_defaults_are_the_codes() -> None:
    it = RooflineOptions()
    for name, told in (
        ("bandwidth_share", "0.9"),
        ("compute_share", "0.8"),
        ("step_overhead_ns", "300,000"),
        ("layer_overhead_ns", "42,000"),
        ("request_overhead_ns", "10,000"),
        ("reserve_mib", "2048"),
    ):
        assert f"{getattr(it, name)}" == told.replace(",", "")
        line = next(line for line in PAGE.splitlines() if f"`{name}`" in line and line.startswith("| `"))
        assert told in line


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def test_the_pages_examples_are_taken() -> None:
    """A scenario's [cost], a device and a model as tables, and a table of measurements."""
    named, tables = (tomllib.loads(text)["cost"] for text in blocks("toml"))
    shape = BatchShape(decode_requests=4, kv_tokens=4_000)
    for cost in (named, tables):
        assert make_cost_model(CostConfig(**cost)).step_ns(shape) > 0
    (table,) = map(json.loads, blocks("json"))
    made = make_cost_model(CostConfig(model="table", options=table))
    assert made.step_ns(BatchShape(decode_requests=8, kv_tokens=50_000, swap_pages=1)) == 2_000_000 + 700_000 + 40_000
