"""docs/write_a_policy.md as a newcomer follows it: in an empty folder, block by block, in the order of the page.

A comment before a fence says what the block is: ``<!-- file: NAME -->`` is written there, ``<!-- runnable: words -->``
is run and prints the words, ``<!-- fails: words -->`` prints them and does not succeed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from stepwell.tests.architecture_rules import ROOT
from stepwell.tests.cli.hand import call

pytest.importorskip("uvicorn", reason="needs the extra `http`")

PAGE = ROOT / "docs" / "write_a_policy.md"
BLOCK = re.compile(r"<!-- (file|runnable|fails): (.+?) -->\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TABLE = re.compile(r"<!-- table -->\n((?:\|.*\n)+)")
TRACE = ROOT.parent / "shared" / "traces" / "azure_llm_2023_conv.csv"
PATIENCE_S = 120

needs_trace = pytest.mark.skipif(not TRACE.is_file(), reason="needs the Azure trace of 2023")


def test_every_block_of_the_page_is_run() -> None:
    assert PAGE.read_text().count("\n```") == 2 * len(BLOCK.findall(PAGE.read_text())) > 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Empty but for the trace, and the two commands that the page takes to be there."""
    shutil.copy(TRACE, tmp_path / "AzureLLMInferenceTrace_conv.csv")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, arguments in (("stepwell", "-m stepwell"), ("python", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (commands / name).chmod(0o755)
    return tmp_path


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def run(text: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Status and all output; whatever the block leaves behind is ended."""
    shell = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = shell.communicate(timeout=PATIENCE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    return shell.returncode, out


@pytest.mark.slow
@needs_trace
def test_a_newcomer_follows_the_page(folder: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STEPWELL__")}
    environment |= {"PATH": f"{folder / 'bin'}{os.pathsep}{environment['PATH']}", "COLUMNS": "120"}
    said = ""
    for kind, words, text in BLOCK.findall(PAGE.read_text()):
        if kind == "file":
            (folder / words).write_text(text)
            continue
        status, out = run(text.replace("8000", str(free_port())), folder, environment)
        assert (status != 0) == (kind == "fails"), (text, out)
        assert words in out, (text, out)
        said += out
    (table,) = TABLE.findall(PAGE.read_text())
    for row in table.splitlines()[2:]:
        label, *figures = [cell.strip() for cell in row.strip("|").split("|")]
        assert re.search(rf"{label} +{' +'.join(figures)}\n", said), row


def test_what_the_first_steps_of_the_page_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quick part: both policies of the page do what it says of them."""
    monkeypatch.chdir(tmp_path)
    first, second = [text for kind, name, text in BLOCK.findall(PAGE.read_text()) if name == "my_policy.py"]
    for text, status in ((first, 1), (second, 0)):
        Path("my_policy.py").write_text(text)
        assert call(capsys, "policies", "check", "my_policy.py:ShortFirst", "--examples", "5")[0] == status
        assert call(capsys, "sim", "--policy", "my_policy.py:ShortFirst", "--limit", "20")[0] == 0
