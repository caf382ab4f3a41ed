"""``stepwell policies check``: what breaks somebody's policy is said, small, and can be played again."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from stepwell.tests.cli.hand import call

MINE = '''\
import msgspec
from stepwell.core.plan import StepPlan
from stepwell.core.protocols import Promises
from stepwell.policies.toolkit import OrderedLine, by_arrival, pack

class Mine:
    """Swaps, but in every second plan."""
    promises = Promises()

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        every: int = 2

    def __init__(self, options):
        self.line, self.plans, self.every = OrderedLine(by_arrival), 0, options.every

    def observe(self, event):
        self.line.observe(event)

    def plan(self, view):
        self.plans += 1
        return pack(view, self.line, mode="recompute" if self.plans % self.every else "swap")

class LastFirst(Mine):
    promises = Promises(bounded_wait=True)

    def __init__(self, options):
        super().__init__(options)
        self.line = OrderedLine(lambda request, now_ns: (0, -request.id))

    def plan(self, view):
        return pack(view, self.line)
'''


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def test_a_fault_is_shrunk_and_can_be_played_again(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "policies", "check", f"{mine}:Mine", "--examples", "300")
    assert status == 1
    assert "is not honest about repeat" in out or "is not a function of the live requests" in out
    assert "request 1 (chat, tenant) comes at tick" in out
    again = shlex.split(out.splitlines()[-1])
    assert again[:4] == ["stepwell", "policies", "check", f"{mine}:Mine"]
    status, replayed, _ = call(capsys, *again[1:])
    assert status == 1
    assert replayed.splitlines()[0] == out.splitlines()[0]
    status, out, _ = call(capsys, *again[1:], "--option", "every=1")
    assert (status, out) == (0, f"{mine}:Mine conforms: the workload, promises kept: none made\n")


def test_a_promise_that_takes_an_endless_stream_to_break(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "policies", "check", f"{mine}:LastFirst", "--examples", "2")
    assert status == 1
    assert out.startswith(f"{mine}:LastFirst starves: a chat request of 1 prompt tokens has waited 120 s")


def test_a_policy_that_conforms(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sjf", "--examples", "3", "--option", "predictor=constant", "--option", "predictor_options.tokens=9"]
    assert call(capsys, "policies", "check", *arguments) == (
        0,
        "sjf conforms: 3 workloads, promises kept: work conserving, bounded wait\n",
        "",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fcsf"], "did you mean 'fcfs'?"),
        (["fcfs", "--examples", "0"], "--examples: must be at least 1, not 0"),
        (["fcfs", "--replay", "nonsense"], "is no workload of an earlier check"),
        (["sjf", "--option", "predictor"], "is written KEY=VALUE, not 'predictor'"),
        (["sjf", "--option", "output_cost=0"], "output_cost"),
    ],
)
def test_refusals(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = call(capsys, "policies", "check", *arguments)
    assert status == 2
    assert message in err
