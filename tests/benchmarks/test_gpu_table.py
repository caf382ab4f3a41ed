"""The GPU script's figures, targets and verdicts; and that one section's trouble is no other's."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.benchmarks.gpu import __main__ as script
from stepwell.benchmarks.gpu import table
from stepwell.benchmarks.gpu.lines import Line, decode, encode, not_measured, read, write
from stepwell.benchmarks.gpu.sections import CPU, DEVICE, SECTIONS, TOTAL_S, Section
from stepwell.benchmarks.gpu.targets import TARGETS, Target, outcome

AT_LEAST = Target("speed", "how fast", 80.0, "%")
AT_MOST = Target("gap", "how long", 5.0, "%", most=True)


def figure(target: Target, value: float | None, note: str = "") -> Line:
    return Line("engine", "something", value, "%", target.key, note)


@pytest.mark.parametrize(
    ("target", "values", "verdict", "worst"),
    [
        (AT_LEAST, [80.0], "pass", 80.0),
        (AT_LEAST, [99.0, 79.9], "miss", 79.9),
        (AT_MOST, [5.0, 1.0], "pass", 5.0),
        (AT_MOST, [5.1], "miss", 5.1),
        (AT_LEAST, [], "not measured", None),
        (AT_LEAST, [None], "not measured", None),
        (AT_LEAST, [90.0, None], "not measured", 90.0),
        (AT_LEAST, [70.0, None], "miss", 70.0),
    ],
)
def test_the_worst_figure_decides(
    target: Target, values: list[float | None], verdict: str, worst: float | None
) -> None:
    other = figure(AT_MOST if target is AT_LEAST else AT_LEAST, -1.0)
    found = outcome(target, [other, *(figure(target, each, "it broke") for each in values)])
    assert (found.verdict, found.value) == (verdict, worst)
    if None in values and verdict == "not measured":
        assert "it broke" in found.why


def test_without_a_card_only_what_does_not_depend_on_it_is_judged() -> None:
    lines = [Line("speed", DEVICE, note=CPU), *(Line("speed", "it", each.bound, target=each.key) for each in TARGETS)]
    found = {each.target.key: each for each in script.judged(lines)}
    assert {key for key, each in found.items() if each.verdict == "pass"} == {"correct", "decisions"}
    assert all(each.why == "there is no GPU" for each in found.values() if each.verdict == "not measured")


def test_lines_come_back_from_a_file_the_torn_one_left_out(tmp_path: Path) -> None:
    lines = [
        Line("engine", "decode, 1 × 1,024", 181.5, "tokens/s", "streaming", "5.5 ms a step", {"step_s": 0.0055}),
        not_measured("engine", "prefill", "no time was left"),
        Line("journals", "none of it", 0.0),
    ]
    path = tmp_path / "lines"
    write(path, lines)
    with path.open("a") as file:
        file.write(encode(lines[0])[:-5])
    assert list(read(path)) == lines
    assert decode(encode(lines[0])) == lines[0]
    assert list(read(tmp_path / "nothing")) == []


def test_tables_say_what_was_not_measured_and_why() -> None:
    told = "\n".join(table.figures([not_measured("theirs", "64 requests", "transformers is not installed")]))
    assert "not measured  (transformers is not installed)" in told
    target = next(each for each in TARGETS if each.key == "theirs")
    told = "\n".join(table.targets([outcome(target, []), outcome(target, [figure(target, 2.5)])]))
    assert "≥ 3 ×" in told
    assert "not measured" in told
    assert "2.5 ×  miss" in told


def test_every_target_belongs_to_a_section_and_all_fit_the_time() -> None:
    assert sorted(key for each in SECTIONS for key in each.targets) == sorted(each.key for each in TARGETS)
    assert TOTAL_S < 360
    root = Path(script.__file__).parent
    assert all((root / f"{each.module}.py").exists() for each in SECTIONS)


def test_a_section_that_breaks_is_reported_and_the_next_one_runs(capsys: pytest.CaptureFixture[str]) -> None:
    broken = Section("nobody", "Nobody", "nothing", 30, ("steps",))
    first, second = script.sections([broken, Section("nobody", "Somebody", "nothing", 0)])
    assert [(each.target, each.value) for each in first] == [("steps", None)]
    assert "KeyError: 'nobody'" in first[0].note
    assert second[0].note == "no time was left"
    assert "Somebody" in capsys.readouterr().out


def test_the_page_about_it_names_every_section_and_target() -> None:
    page = (Path(script.__file__).parents[2] / "docs/cuda.md").read_text()
    told = page.partition("## Reading the script's table")[2]
    for section in SECTIONS:
        assert f"| `{section.name}` |" in told
    for target in TARGETS:
        bound = f"{'≤' if target.most else '≥'} {target.bound:g} {target.unit}".rstrip()
        assert f"| {target.what} | {bound} |" in told
