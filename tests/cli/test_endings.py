"""Every way a command can end: its exit status, one clear line, and never a traceback."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepwell.cli.app import COMMANDS
from stepwell.core.errors import CapacityError, InvariantError
from stepwell.sim.run import simulate
from stepwell.tests.cli.hand import call, scenario

BAD = [
    (["smi"], "did you mean 'sim'?"),
    (["bogus"], "unknown command 'bogus'. Commands: serve, admin, sim,"),
    (["sim", "--polcy", "fcfs"], "unrecognized arguments"),
    (["sim", "--limit", "many"], "invalid int value"),
    (["sim", "--limit", "-3"], "workload.limit"),
    (["sim", "--rate", "nan"], "workload.rate"),
    (["sim", "--policy", "fcsf"], "did you mean 'fcfs'?"),
    (["sim", "--policy", "fcfs", "--set", "scheduler.policy=swap"], "not by both"),
    (["sim", "--set", "memory.pages"], "path=value"),
    (["sim", "--set", "memory.pags=5"], "did you mean 'pages'?"),
    (["sim", "--set", "scheduler.options.x=5"], "scheduler.options.x"),
    (["sim", "nowhere.toml"], "cannot read nowhere.toml"),
    (["sim", "--trace", "nowhere.csv"], "nowhere.csv"),
    (["sim", "--trace", "."], "directory"),
    (["sim", "--limit", "5", "--journal", "/proc/no/run.jsonl"], "/proc/no"),
    (["sim", "--limit", "5", "--csv", "/proc/no.csv"], "/proc/no.csv"),
    (["replay", "nowhere.jsonl"], "there is no journal at nowhere.jsonl"),
    (["replay", "."], ""),
    (["journal"], "required"),
    (["journal", "stat", "nowhere.jsonl"], "there is no journal at nowhere.jsonl"),
    (["journal", "stat", __file__], "is not a Stepwell journal"),
    (["explain", "nowhere.jsonl", "--request", "1"], "there is no journal"),
    (["explain", "nowhere.jsonl"], "--request"),
    (["config", "check", "nowhere.toml"], "cannot read nowhere.toml"),
    (["config", "check", __file__], "is not valid TOML"),
    (["policies", "describe", "fcsf"], "did you mean 'fcfs'?"),
    (["policies", "list", "--kind", "gadgets"], "invalid choice"),
    (["bench", "sim", "--requests", "0"], "at least 1"),
    (["bench", "scheduler", "--policy", "nobody"], "unknown policy"),
    (["bench", "memory", "--allocator", "nobody"], "unknown allocator"),
    (["bench", "memory", "--pages", "10"], "at least 1024 pages"),
    (["bench", "engine", "--runs", "0"], "at least 1"),
    (["bench", "engine", "--url", "http://example.com"], "on the loopback"),
    (["bench", "engine", "--corpus", "nowhere.json"], "cannot read nowhere.json"),
    (["demo", "--limit", "-1"], "--limit"),
]


@pytest.mark.parametrize(("argv", "says"), BAD, ids=lambda it: " ".join(it)[-40:] if isinstance(it, list) else "")
def test_bad_input(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = call(capsys, *argv)
    assert status == 2
    assert says in err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1


def test_a_policy_that_breaks_a_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rogue.py"
    file.write_text(
        "from stepwell.core.plan import StepPlan\nfrom stepwell.policies.fcfs import Fcfs\n"
        "class Rogue(Fcfs):\n    def plan(self, view):\n        return StepPlan(admit=[(999, 1)])\n"
    )
    status, _, err = call(capsys, "sim", "--limit", "3", "--policy", f"{file}:Rogue")
    assert status == 2
    assert "'known request'" in err
    assert "999" in err
    assert len(err.splitlines()) == 1


def test_a_bug_is_kept_as_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **more: object) -> None:
        raise InvariantError("I1 pages conserved: no")

    monkeypatch.setattr("stepwell.core.scheduler.Scheduler.handle", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    status, _, err = call(capsys, "sim", "--limit", "3", "--journal", tmp_path / "run.jsonl")
    assert status == 3
    assert "I1 pages conserved" in err
    assert str(tmp_path / "run.jsonl") in err
    evidence = re.search(r"evidence is in (\S+)", err)
    assert evidence is not None
    assert "Traceback" in Path(evidence[1]).read_text()
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "status"),
    [(CapacityError("no room", code="queue_full"), 2), (KeyboardInterrupt(), 130), (ZeroDivisionError("x"), 3)],
)
def test_what_a_command_raises(
    error: BaseException, status: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(*args: object, **more: object) -> None:
        raise error

    monkeypatch.setattr("stepwell.cli.policies.catalogue", raising)
    found, out, err = call(capsys, "policies", "list")
    assert (found, out, len(err.splitlines())) == (status, "", 1)


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, *([name] if name else []), "--help")
    assert (status, err) == (0, "")
    assert "examples:" in out
    assert f"stepwell {name}".strip() in out
    assert max(map(len, out.splitlines())) <= 120


PARTS = ["journal show", "journal stat", "config check", "config show", "policies list", "policies describe"]


@pytest.mark.parametrize("name", [*PARTS, "bench scheduler", "bench memory", "bench sim", "bench engine"])
def test_help_of_a_part_has_a_description_and_its_own_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, *name.split(), "--help")
    assert (status, err) == (0, "")
    usage, description, *_ = out.split("\n\n")
    assert usage.startswith(f"usage: stepwell {name}")
    assert re.match(r"[A-Z].*\.$", description)
    examples = out.partition("examples:\n")[2].partition("\n\n")[0].splitlines()
    assert examples
    assert all(each.startswith(f"  stepwell {name}") for each in examples)
    assert max(map(len, out.splitlines())) <= 120


def test_help_says_what_nought_means(capsys: pytest.CaptureFixture[str]) -> None:
    out = " ".join(call(capsys, "sim", "--help")[1].split())
    assert "only the first N requests (0: all)" in out
    assert "X requests a second (0: as recorded)" in out


def test_nothing_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys)
    assert (status, out) == (2, "")
    assert "commands:" in err
    assert call(capsys, "--version")[1].startswith("stepwell ")


# ------------------------------------------------------------------------------------------------ processes


def command(*argv: object) -> list[str]:
    return [sys.executable, "-m", "stepwell", *map(str, argv)]


def test_module_and_entry_point_agree() -> None:
    done = subprocess.run(command("policies", "list"), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    entry = Path(sys.executable).with_name("stepwell")
    if entry.exists():
        assert subprocess.run([entry, "policies", "list"], capture_output=True, text=True).stdout == done.stdout


def test_help_imports_nothing_heavy() -> None:
    program = "import sys\nfrom stepwell.__main__ import main\nmain(['--help'])\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = set(done.stderr.split())
    assert "stepwell.cli.app" in loaded
    assert not loaded & {"numpy", "rich", "structlog", "msgspec", "matplotlib", "anyio"}


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    simulate(overrides=["workload.limit=400"], journal=tmp_path / "run.jsonl")
    shown = subprocess.Popen(
        command("journal", "show", tmp_path / "run.jsonl"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert shown.stdout is not None
    assert shown.stderr is not None
    assert shown.stdout.readline()
    shown.stdout.close()
    assert shown.stderr.read() == b""
    shown.stderr.close()
    assert shown.wait(timeout=30) in (141, 0)


def test_interrupted(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    running = subprocess.Popen(
        command("sim", "--set", "workload.settings.count=1000000", "--journal", journal),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Where the tests themselves run in the background, children inherit that interrupts are ignored.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        until = time.monotonic() + 60
        while not (journal.exists() and journal.stat().st_size > 50_000) and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=60)
    finally:
        running.kill()
    assert (running.returncode, out, err) == (130, "", "stepwell: interrupted\n")
    assert journal.read_bytes().endswith(b"\n")


def test_hash_seed_changes_nothing(tmp_path: Path) -> None:
    file = scenario(tmp_path)
    told = {
        subprocess.run(
            command("sim", file, "--policy", "chat-batch", "--json"),
            capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(told) == 1
