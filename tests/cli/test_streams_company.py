"""A worker has cores to itself while its steps are measured, and everything is as it was after that."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

import pytest

from stepwell.cli.process_stats import children, command_line
from stepwell.cli.streams_company import WORKER, apart, settings

_PARENT = f"""
import subprocess, sys
for name in ("{WORKER}", "other"):
    subprocess.Popen([sys.executable, "-c", "input()", name])
input()
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be shared out")
def test_the_worker_has_all_cores_but_the_first() -> None:
    mine = os.sched_getaffinity(0)
    first = min(mine)
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + 60
        while len(children(server.pid)) < 2 or not all(command_line(each) for each in children(server.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        workers = [each for each in children(server.pid) if WORKER in command_line(each).split()]
        others = [each for each in children(server.pid) if each not in workers]
        assert len(workers) == len(others) == 1
        with apart(server.pid):
            assert os.sched_getaffinity(workers[0]) == mine - {first}
            for each in (others[0], server.pid, os.getpid()):
                assert os.sched_getaffinity(each) == {first}
        assert os.sched_getaffinity(0) == mine


def test_a_batch_that_is_as_large_as_the_crowd_has_nobody_in_line() -> None:
    few = argparse.Namespace(few=8, users=100, tokens=0)
    assert "scheduler.policy=priority" in settings(few)
    assert "scheduler.running_limit=8" in settings(few)
    everybody = settings(argparse.Namespace(few=100, users=100, tokens=0))
    assert "scheduler.policy=priority" not in everybody
    assert "scheduler.running_limit=100" in everybody
