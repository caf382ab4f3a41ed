"""What the pages say is so: examples run, settings and metrics are those that there are.

Every example for clients that is marked as runnable is run against the model ``echo``.

A mark is a comment before the fence, ``<!-- runnable: words -->``; what the example prints must hold the words.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stepwell.core.config import ServerConfig, WireConfig
from stepwell.core.config_responses import ResponsesConfig
from stepwell.sim.scenario import read_scenario
from stepwell.tests.architecture_rules import ROOT
from stepwell.tests.e2e.browser import browsing, pages
from stepwell.tests.e2e.serving import PATIENCE_S, Server, serving

PAGES = ROOT / "docs" / "streaming.md", ROOT / "docs" / "responses.md"
OPERATORS = ROOT / "docs" / "serving.md"
MARKED = re.compile(r"<!-- runnable: (.+?) -->\n```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ADDRESS = "127.0.0.1:8000"
EXAMPLES = [
    pytest.param(*found, id=f"{page.stem}-{number}-{found[1]}")
    for page in PAGES
    for number, found in enumerate(MARKED.findall(page.read_text()))
]


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with pages(ROOT / "examples" / "browser") as origin:
        yield origin


@pytest.fixture(scope="module")
def server(origin: str) -> Iterator[Server]:
    """The model ``echo`` under the name that the examples ask for."""
    with serving("--set", "model.name=smollm2", "--set", f'server.origins=["{origin}"]', step_us=5000) as running:
        yield running


@pytest.mark.parametrize(("words", "language", "code"), EXAMPLES)
def test_an_example_runs(server: Server, origin: str, tmp_path: Path, words: str, language: str, code: str) -> None:
    code = code.replace(ADDRESS, f"127.0.0.1:{server.port}")
    if language == "js":
        assert words in in_browser(code, origin, tmp_path)
        return
    command = {"bash": ["bash", "-euo", "pipefail", "-c", code], "python": [sys.executable, "-W", "error", "-c", code]}
    done = subprocess.run(command[language], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout


def in_browser(code: str, origin: str, profile: Path) -> str:
    """What the code writes to the console, on a page of ours."""
    with browsing(profile) as page:
        page.open(f"{origin}/index.html")
        console = "const said = [], console = {log: (...words) => said.push(words.join(' '))};"
        return str(page.look(f"(async () => {{ {console}\n{code}\nreturn said.join('\\n'); }})()"))


def test_every_language_is_there() -> None:
    """Should the marks be lost, no example would be looked at."""
    for page in PAGES:
        languages = [each.values[1] for each in EXAMPLES if str(each.id).startswith(page.stem)]
        assert len(languages) >= 5
        assert {"bash", "python", "js"} == set(languages)
        assert ADDRESS in page.read_text()


def test_the_settings_are_those_that_there_are(tmp_path: Path) -> None:
    settings, wire = re.findall(r"^```toml\n(.*?)^```$", OPERATORS.read_text(), re.DOTALL | re.MULTILINE)
    file = tmp_path / "serving.toml"
    file.write_text(wire)
    assert read_scenario(str(file), overrides=(), environ={}).config.wire == WireConfig()
    assert list(tomllib.loads(wire)["wire"]) == list(WireConfig.__struct_fields__)
    file.write_text(settings)
    resolved = read_scenario(str(file), overrides=(), environ={})
    assert resolved.config.model.path == "smollm2"
    assert list(tomllib.loads(settings)["server"]) == list(ServerConfig.__struct_fields__)


def test_the_settings_of_responses_are_those_that_there_are() -> None:
    (settings,) = re.findall(r"^```toml\n(.*?)^```$", PAGES[1].read_text(), re.DOTALL | re.MULTILINE)
    told = tomllib.loads(settings)["responses"]
    assert list(told) == list(ResponsesConfig.__struct_fields__)
    assert msgspec.convert(told, ResponsesConfig) == ResponsesConfig()
