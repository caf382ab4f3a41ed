"""The page of ``examples/browser`` in a real Chromium, from another origin: streaming both ways, and stopping."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.tests.architecture_rules import ROOT
from stepwell.tests.e2e.browser import Page, browsing, pages
from stepwell.tests.e2e.serving import Server, serving

WAYS = ("sse", "websocket")

WATCH = """
globalThis.lengths = [];
new MutationObserver(() => lengths.push(document.querySelector("#answer").textContent.length))
  .observe(document.querySelector("#answer"), {childList: true});
"""
"""Writes down how long the answer was whenever it grew."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with pages(ROOT / "examples" / "browser") as origin:
        yield origin


@pytest.fixture(scope="module")
def server(page: Page, origin: str) -> Iterator[Server]:
    """Slow enough to be watched and stopped; after ``page``, which skips where there is no browser."""
    with serving("--set", f'server.origins=["{origin}"]', step_us=20_000) as running:
        yield running


def opened(page: Page, origin: str, server: Server) -> None:
    page.open(f"{origin}/index.html?server=http://127.0.0.1:{server.port}")


def is_free(page: Page) -> None:
    page.until("document.querySelector('#stop').disabled")


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_streams_in_pieces(page: Page, origin: str, server: Server, way: str) -> None:
    said = f"Grüße über {way}: {'eins zwei drei ' * 3}"
    opened(page, origin, server)
    page.until("document.querySelector('#model').value === 'echo'")
    page.look(WATCH)
    page.type("#message", said)
    page.click(f"#{way}")
    page.until("document.querySelector('#answer').textContent !== ''")
    is_free(page)
    assert page.look("document.querySelector('#answer').textContent") == said
    lengths = page.look("lengths.filter((each) => each > 0)")
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 5
    status = page.look("document.querySelector('#status').textContent")
    ended = "stop" if way == "sse" else "completed"
    assert status.startswith(f"{ended}: {len(said.encode())} tokens, first token after "), status
    assert status.endswith(" tokens/s")


@pytest.mark.parametrize("way", WAYS)
def test_stop_cancels_on_the_server(page: Page, origin: str, server: Server, way: str) -> None:
    aborted = server.metric("vllm:request_success_total", finished_reason="abort")
    opened(page, origin, server)
    page.type("#message", "x" * 20_000)
    page.click(f"#{way}")
    page.until("document.querySelector('#answer').textContent.length > 3")
    assert server.metric("vllm:num_requests_running") == 1
    page.click("#stop")
    is_free(page)
    server.until(lambda: server.idle)
    assert server.metric("vllm:request_success_total", finished_reason="abort") == aborted + 1
    ended = "stopped" if way == "sse" else "cancelled"
    assert page.look("document.querySelector('#status').textContent").startswith(f"{ended}: ")
    assert 3 < page.look("document.querySelector('#answer').textContent.length") < 20_000


@pytest.mark.parametrize("way", WAYS)
def test_the_page_of_another_origin_is_refused(page: Page, server: Server, way: str) -> None:
    accepted = server.metric("stepwell:requests_accepted_total")
    with pages(ROOT / "examples" / "browser") as stranger:
        opened(page, stranger, server)
        page.until("document.querySelector('#status').textContent.startsWith('error: ')")
        page.complaints.clear()
        page.click(f"#{way}")
        is_free(page)
        page.until("document.querySelector('#status').textContent.startsWith('error: ')")
        assert page.look("document.querySelector('#answer').textContent") == ""
    page.until_complaint("blocked by CORS policy" if way == "sse" else "WebSocket connection to")
    assert server.metric("stepwell:requests_accepted_total") == accepted


def test_the_page_stands_alone() -> None:
    """One file, nothing fetched from elsewhere, and short enough to be read."""
    text = Path(ROOT / "examples" / "browser" / "index.html").read_text()
    assert "src=" not in text
    assert "href=" not in text
    assert len(text.splitlines()) < 200
