"""docs/workloads.md tells the formats that there are, and its samples are read as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepwell.core.config import WorkloadConfig
from stepwell.sim.workload.trace import FORMATS, read_trace

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "workloads.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### `([\w-]+)`\n(.*?)(?=^##)", PAGE, flags=re.M | re.S))


def test_every_format_has_its_section() -> None:
    assert set(SECTIONS) == set(FORMATS)


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"journal"}))  # a journal's header alone fills a page
def test_a_sample_is_read_as_its_format(name: str, tmp_path: Path) -> None:
    sample, *further = re.findall(r"^```\n(.*?)^```", SECTIONS[name], flags=re.M | re.S)
    path = tmp_path / "sample-trace.csv"
    path.write_text(sample, encoding="utf-8")
    if further:
        (tmp_path / "sample-dataset.json").write_text(further[0], encoding="utf-8")
    workload = read_trace(path)
    assert workload.report is not None
    assert workload.report.format == name
    assert workload.report.refused == 0
    assert len(workload) == {"servegen": 1800, "sharegpt": 3, "mooncake": 3, "qwen": 3, "vllm-log": 1}.get(name, 2)


def test_settings_and_transforms_of_the_page_are_those_that_there_are() -> None:
    settings = {field for each in FORMATS.values() for field in each.options.__struct_fields__}
    assert set(re.findall(r"settings\.(\w+)", PAGE)) | {"seed"} >= settings
    shaping = PAGE.partition("## Shaping a workload")[2].partition("## Where")[0]
    told = {name for cell in re.findall(r"^\| (`.*?) \|", shaping, flags=re.M) for name in re.findall(r"`(\w+)`", cell)}
    assert told - {"cut", "drop"} <= set(WorkloadConfig.__struct_fields__)
    assert told >= {
        "start_s",
        "end_s",
        "share",
        "share_by",
        "share_seed",
        "limit",
        "max_prompt",
        "max_output",
        "over",
        "rate",
    }
