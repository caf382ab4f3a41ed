"""The drive that ``bench scheduler`` times: with few steps to time, the first have not ended before all are in."""

from __future__ import annotations

from stepwell.sim.bench import RUNNING, Drive


def test_with_few_steps_all_run_that_were_asked_for_and_steps_are_timed() -> None:
    drive = Drive("fcfs", max(RUNNING), 5)
    assert drive.running == max(RUNNING)
    assert len(drive.steady(5)) == 5
    assert len(drive.scheduler.state.group.members) == max(RUNNING), "nobody has ended meanwhile"
