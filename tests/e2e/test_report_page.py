"""The report in a real browser, opened from disk: as a person sees it, wide and narrow, with scripts and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.sim import report
from stepwell.sim.compare.run import compare
from stepwell.tests.e2e.browser import browsing

WIDTHS = (1280, 400)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = ["workload.limit=80", "memory.pages=1500", "scheduler.max_context=2048"]
    found = compare(policies=["fcfs", "chat-batch"], loads=[0.6, 1.2], seeds=2, jobs=1, overrides=settings)
    return report.write(found, tmp_path_factory.mktemp("page"))


def test_it_opens_from_disk_and_asks_for_nothing(page: Path, tmp_path: Path) -> None:
    with browsing(tmp_path / "profile") as tab:
        for width in WIDTHS:
            tab.resize(width, 900)
            tab.open(page.as_uri())
            assert tab.look("document.documentElement.scrollWidth") <= width, "the page itself never scrolls sideways"
            tab.picture(tmp_path / f"{width}.png")
            assert (tmp_path / f"{width}.png").stat().st_size > 10_000
        assert tab.look("document.querySelectorAll('figure svg').length") >= 9
        assert set(tab.asked) == {page.as_uri()}
        assert tab.complaints == []


@pytest.mark.slow
def test_tables_sort_and_the_page_turns_dark(page: Path, tmp_path: Path) -> None:
    column = "[...document.querySelectorAll('table.sortable tbody')[0].rows].map((row) => +row.cells[2].dataset.sort)"
    with browsing(tmp_path / "profile") as tab:
        tab.open(page.as_uri())
        before = tab.look(column)
        tab.look("document.querySelector('table.sortable thead th:nth-child(3)').click()")
        assert tab.look(column) == sorted(before, reverse=True)
        tab.look("document.querySelector('table.sortable thead th:nth-child(3)').click()")
        assert tab.look(column) == sorted(before)
        light = tab.look("getComputedStyle(document.body).backgroundColor")
        tab.look("document.querySelector('button').click()")
        assert tab.look("getComputedStyle(document.body).backgroundColor") != light
        assert tab.complaints == []


@pytest.mark.slow
def test_without_scripts_it_is_complete(page: Path, tmp_path: Path) -> None:
    with browsing(tmp_path / "profile") as tab:
        tab.open(page.as_uri())
        whole = tab.look("document.querySelector('main').innerText")
        tab.without_scripts()
        tab.open(page.as_uri())
        assert tab.look("document.querySelector('button')") is None
        assert tab.look("document.querySelector('main').innerText") == whole
        assert "Repeat it" in whole
        assert tab.complaints == []
