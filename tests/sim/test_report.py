"""A report says what the comparison says, to anybody, with anything in it: numbers, words, pictures, escapes."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepwell.core.errors import UserError
from stepwell.sim import report
from stepwell.sim.compare.result import Comparison, Difference, Failure, Metric, Row, to_json
from stepwell.sim.report import words
from stepwell.sim.report.look import SCRIPT
from stepwell.sim.report.lookup import ALL, ATTAINMENT, Found
from stepwell.sim.report.numbers import change, figure, interval
from stepwell.sim.report.page import page
from stepwell.tests.cli.hand import call

NASTY = """<script>alert(1)</script>&"'<b>x</b>"""
VOID = {"meta", "br"}
replace = msgspec.structs.replace


class Reader(HTMLParser):
    """Reads a page strictly: what is opened is closed.  ``tables`` as rows of texts; ``links``; ``ids``; ``text``."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.handlers: list[str] = []
        self.policy = ""
        self.script = ""
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "srcset", "data", "action"):
                self.links.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)
        told = dict(attrs)
        if told.get("http-equiv") == "Content-Security-Policy":
            self.policy = told["content"] or ""
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.script += data
            return
        self.text.append(data)
        if self.tables and any(each in self.open for each in ("td", "th")) and self.tables[-1]:
            self.tables[-1][-1][-1] += f"{data}\n"


def said(found: Comparison) -> list[str]:
    return words.answer(Found(found))


# ------------------------------------------------------------------------------------------------ the page


def test_the_page_needs_nothing_else(written: Path) -> None:
    """No network, no handlers, no script but the one that its policy names."""
    html = (written / "report.html").read_text()
    reader = Reader(html)
    assert all(link.startswith("#") for link in reader.links)
    assert {link[1:] for link in reader.links} <= set(reader.ids)
    assert len(reader.ids) == len(set(reader.ids))
    assert not reader.handlers
    assert not reader.tags & {"link", "img", "iframe", "object", "embed", "form", "base"}
    assert reader.script == SCRIPT
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert reader.policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}';" in reader.policy
    assert "http" not in re.sub(r'(?<=xmlns)(:xlink)?="[^"]*"', "", html).replace("http-equiv", "")


def test_every_number_of_the_tables_is_the_comparisons(comparison: Comparison, written: Path) -> None:
    """Cell by cell, found again in the rows by a plain walk."""
    reader = Reader((written / "report.html").read_text())
    scopes = comparison.axes.scopes
    labels = {each.name: each for each in comparison.axes.metrics}
    for table, scope in zip(reader.tables, scopes, strict=False):
        heads = table[0][1:]
        rows = table[1:]
        assert len(rows) == len(comparison.axes.contenders) * len(comparison.axes.points)
        for head, column in zip(heads, range(1, len(heads) + 1), strict=True):
            title = head.strip().removesuffix("↑").removesuffix("↓").strip()
            (metric,) = [m for m in labels.values() if title.split(",")[0] == m.label]
            for row in rows:
                contender, point = row[0].strip().split("\n")
                (told,) = [
                    each
                    for each in comparison.rows
                    if (each.contender, each.point.label, each.scope, each.metric)
                    == (contender, point, scope, metric.name)
                ]
                assert row[column].strip().split("\n") == [
                    each for each in (figure(metric, told.mean), interval(metric, told)) if each
                ]


@pytest.mark.slow
def test_it_is_the_same_every_time(comparison: Comparison, written: Path, tmp_path: Path) -> None:
    """Page and SVG, byte for byte: no dates, no random identifiers."""
    report.write(comparison, tmp_path)
    for first in sorted(written.rglob("*.*")):
        assert first.read_bytes() == (tmp_path / first.relative_to(written)).read_bytes(), first.name


def test_texts_are_escaped(comparison: Comparison) -> None:
    contenders = [replace(comparison.axes.contenders[0], label=NASTY), *comparison.axes.contenders[1:]]

    def renamed(items: list[Any]) -> list[Any]:
        return [replace(each, contender=NASTY) if each.contender == "fcfs" else each for each in items]

    nasty = replace(
        comparison,
        scenario=NASTY,
        config=NASTY,
        notes=[NASTY],
        axes=replace(comparison.axes, contenders=contenders, baseline=NASTY),
        cells=renamed(comparison.cells),
        rows=renamed(comparison.rows),
        differences=[replace(each, baseline=NASTY) for each in renamed(comparison.differences)],
        rankings=[replace(each, order=renamed(each.order)) for each in comparison.rankings],
        knees=renamed(comparison.knees),
        failures=[Failure(NASTY, comparison.axes.points[0], 1, NASTY, NASTY)],
    )
    html = page(Found(nasty), [], [NASTY])
    reader = Reader(html)
    assert "b" not in reader.tags
    assert html.count("<script>") == 1
    assert "".join(reader.text).count(NASTY) > 10


def test_nothing_is_left_of_a_comparison_all_of_whose_runs_failed(comparison: Comparison, tmp_path: Path) -> None:
    point = comparison.axes.points[0]
    empty = replace(comparison, cells=[], rows=[], differences=[], rankings=[], knees=[])
    empty = replace(empty, failures=[Failure("fcfs", point, 1, "ran dry", "stepwell sim --set x=1")])
    html = report.write(empty, tmp_path).read_text()
    assert "No run ended well" in html
    assert "ran dry" in html
    assert "stepwell sim --set x=1" in html


def test_without_matplotlib_there_is_a_page_and_it_says_so(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "can_draw", lambda: False)
    html = report.write(comparison, tmp_path).read_text()
    assert "pip install" in html
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_a_folder_that_cannot_be_is_an_error_that_says_so(comparison: Comparison, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        report.write(comparison, tmp_path / "file" / "below", closeup=False)


@pytest.mark.slow
def test_the_command_writes_it_again(
    comparison: Comparison, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "comparison.json"
    file.write_bytes(to_json(comparison))
    status, out, _ = call(capsys, "report", file, "--no-closeup")
    assert status == 0
    assert str(tmp_path / "report.html") in out
    assert (tmp_path / "pictures" / "differences.png").stat().st_size > 1000
    assert call(capsys, "report", tmp_path / "nothing.json")[0] == 2


# ------------------------------------------------------------------------------------------------ the answer


def set_judged(comparison: Comparison, values: dict[str, float], span: tuple[float, float] | None) -> Comparison:
    """The same, with these SLO attainments everywhere, and this interval of the difference."""
    low, high = span if span is not None else (None, None)
    gap = values["chat-batch"] - values["fcfs"]

    def row(each: Row) -> Row:
        return replace(each, mean=values[each.contender]) if each.metric == ATTAINMENT and each.scope == ALL else each

    def difference(each: Difference) -> Difference:
        if each.metric != ATTAINMENT or each.scope != ALL:
            return each
        real = None if span is None else not span[0] <= 0 <= span[1]
        return replace(each, mean=gap, low=low, high=high, real=real, better=gap > 0 if real else None)

    best = sorted(values, key=lambda label: -values[label])
    rankings = [
        replace(each, order=[replace(next(o for o in each.order if o.contender == label)) for label in best])
        if each.metric == ATTAINMENT
        else each
        for each in comparison.rankings
    ]
    return replace(
        comparison,
        rows=[row(each) for each in comparison.rows],
        differences=[difference(each) for each in comparison.differences],
        rankings=rankings,
    )


def test_a_real_winner(comparison: Comparison) -> None:
    who, real, carries = said(set_judged(comparison, {"fcfs": 0.71, "chat-batch": 0.962}, (0.2, 0.3)))
    assert "chat-batch meets the objectives of 96.2 % of chat requests, 25.2 percentage points more than fcfs" in who
    assert "(the baseline: 71.0 %)" in who
    assert "is real" in real
    assert "+20.0 to +30.0 points" in real
    assert "over 2 seeds" in real
    assert "The objectives hold for 90 % of requests" in carries


def test_what_may_be_chance_is_called_so(comparison: Comparison) -> None:
    _, real, _ = said(set_judged(comparison, {"fcfs": 0.71, "chat-batch": 0.75}, (-0.1, 0.2)))
    assert "may be chance" in real
    assert "−10.0 to +20.0 points" in real


def test_a_baseline_that_wins(comparison: Comparison) -> None:
    wins = set_judged(comparison, {"fcfs": 0.9, "chat-batch": 0.8}, (-0.15, -0.05))
    who, real, carries = said(wins)
    assert "fcfs meets the objectives of 90.0 % of chat requests, 10.0 percentage points more than chat-batch" in who
    assert "(the next best: 80.0 %)" in who
    focus = Found(wins).focus
    better = any(
        each.better and each.point == focus and each.scope == ALL and each.metric in words.PRICES
        for each in wins.differences
    )
    assert ("others are really better at" in carries) == better
    assert ("no other is really better" in carries) != better
    assert "+5.0 to +15.0 points" in real
    assert "is real" in real


def set_means(comparison: Comparison, metric: str, values: dict[str, float], real: bool) -> Comparison:
    """The same, with these values of all requests everywhere, and a difference that is real or may be chance."""
    gap = values["chat-batch"] - values["fcfs"]
    span = sorted((gap / 2 if real else -gap, 3 * gap / 2))

    def of(each: Row | Difference) -> bool:
        return each.metric == metric and each.scope == ALL

    return replace(
        comparison,
        rows=[replace(each, mean=values[each.contender]) if of(each) else each for each in comparison.rows],
        differences=[
            replace(each, mean=gap, low=span[0], high=span[1], real=real) if of(each) else each
            for each in comparison.differences
        ],
    )


def test_at_a_tie_the_next_metric_tells(comparison: Comparison) -> None:
    """Goodput; or E2E mean, if only that is real; only who is equal in all of them does exactly as well."""
    tie = set_judged(comparison, {"fcfs": 1.0, "chat-batch": 1.0}, (0.0, 0.0))
    goodput = set_means(tie, "goodput_per_s", {"fcfs": 5.0, "chat-batch": 4.0}, real=True)
    who, real, _ = said(goodput)
    assert "fcfs meets the objectives of 100.0 % of chat requests, as chat-batch does" in who
    assert "fcfs has a goodput of 5/s, 25 % more than chat-batch (the next best: 4/s)" in who
    assert "is real" in real
    assert "+0.50 to +1.50/s" in real
    chance = set_means(tie, "goodput_per_s", {"fcfs": 5.0, "chat-batch": 4.0}, real=False)
    ended = set_means(chance, "e2e_mean_ms", {"fcfs": 2000.0, "chat-batch": 1000.0}, real=True)
    who, real, _ = said(ended)
    assert "chat-batch answers a request in 1.00 s on average, 50 % less than fcfs (the baseline: 2.00 s)" in who
    assert "−1,500.0 to −500.0 ms" in real
    who, real, _ = said(set_means(chance, "e2e_mean_ms", {"fcfs": 9.0, "chat-batch": 9.0}, real=False))
    assert "goodput" in who
    assert "may be chance" in real
    equal = {"fcfs": 5.0, "chat-batch": 4.99}  # really, but by nothing that can be seen
    who, real, _ = said(set_means(set_means(tie, "goodput_per_s", equal, True), "e2e_mean_ms", equal, True))
    assert "exactly as well" in who
    assert "no difference at all" in real


def test_whose_objectives_hold_and_where_the_price_is_paid(comparison: Comparison) -> None:
    knees = [replace(each, scope="chat") for each in comparison.knees]
    found = Found(replace(comparison, knees=knees))
    assert "at which 90 % of chat requests meet their objectives" in page(found, [])
    assert "at which 90 % of requests meet their objectives" in page(Found(comparison), [])
    assert f"; at {words.place(found, found.focus)} " in words.answer(found)[2]


def test_one_seed_without_an_interval_promises_nothing(comparison: Comparison) -> None:
    _, real, _ = said(set_judged(comparison, {"fcfs": 0.7, "chat-batch": 0.9}, None))
    assert "cannot be told" in real


def test_a_contender_alone(comparison: Comparison) -> None:
    alone = replace(
        comparison,
        axes=replace(comparison.axes, contenders=comparison.axes.contenders[:1]),
        rows=[each for each in comparison.rows if each.contender == "fcfs"],
        cells=[each for each in comparison.cells if each.contender == "fcfs"],
        differences=[],
        rankings=[],
        knees=[],
    )
    sentences = said(alone)
    assert len(sentences) == 3
    assert "no other contender" in sentences[2]
    assert "fcfs, simulated" in page(Found(alone), [])


def test_what_is_not_measured_is_not_promised(comparison: Comparison) -> None:
    """Docs: the report says how far step times are to be trusted."""
    assert any("fitted to no measurement" in each for each in words.trust(Found(comparison)))
    cells = [
        replace(each, summary=replace(each.summary, extrapolated_share=0.125, step_error_p90=0.03))
        for each in comparison.cells
    ]
    told = " ".join(words.trust(Found(replace(comparison, cells=cells))))
    assert "12.5 % of steps" in told
    assert "within 3.0 %" in told


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("ms", 12345.6, "12,346"),
        ("ms", 12.34, "12.3"),
        ("ms", 1.234, "1.23"),
        ("ms", 0.0, "0"),
        ("ms", -0.001, "0"),
        ("share", 0.9617, "96.2"),
        ("share", 1.0, "100.0"),
        ("ratio", 0.98765, "0.988"),
    ],
)
def test_figures(unit: str, value: float, text: str) -> None:
    assert figure(Metric("x", "x", unit, 1, True), value) == text


def test_a_difference_shows_its_sign(comparison: Comparison) -> None:
    metric = Metric("x", "x", "ms", -1, True)
    it = Difference("a", "b", comparison.axes.points[0], ALL, "x", -12.0, -20.0, 3.0, 5, "seeds", -0.5, False, None)
    assert (change(metric, it), interval(metric, it)) == ("−12.0", "−20.0 to +3.00")


def test_intervals_are_those_of_the_other_tables_cut_nowhere(comparison: Comparison) -> None:
    metric = Metric("x", "x", "share", 1, True)
    row = Row("a", comparison.axes.points[0], ALL, "x", 0.5, -0.2, 1.2, 2, "seeds")
    assert interval(metric, row) == "−20.0 to 120.0"
