"""The laws can be broken: each of these bugs, planted into the code that is simulated, is caught within a few lives.

A bug is one that somebody could write.  ``needs`` leaves out lives in which nothing happens that it could spoil.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stepwell.core import recovery
from stepwell.core.engine import Engine
from stepwell.core.events import Cancel, StepFailed, Submitted
from stepwell.core.execution import StepResult
from stepwell.core.instructions import Launch
from stepwell.core.placement_process import Process
from stepwell.core.scheduler import Scheduler
from stepwell.core.state import State
from stepwell.core.streams import Stream
from stepwell.memory.host import HostTier
from stepwell.tests.dst.device import Device
from stepwell.tests.dst.draw import scenario_of
from stepwell.tests.dst.run import failure_of
from stepwell.tests.dst.scenario import Lost, Raises, Scenario
from stepwell.tests.dst.shrink import smallest

Plant = Callable[[pytest.MonkeyPatch], None]
WITHIN = 400
"""Seeds, of which those that need not be lived are left out."""


def a_host_page_is_lost_with_the_device(patch: pytest.MonkeyPatch) -> None:
    lost = HostTier.lost

    def leaks(self: HostTier) -> None:
        lost(self)
        if self._free:
            self._free.pop()
            self.free_pages -= 1

    patch.setattr(HostTier, "lost", leaks)


def a_token_is_sampled_again_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    visible = State.visible_tokens

    def recover(state: State, event: StepFailed) -> None:
        patch.setattr(State, "visible_tokens", lambda self, request: max(0, visible(self, request) - 1))
        recovery.recover(state, event)
        patch.setattr(State, "visible_tokens", visible)

    patch.setattr("stepwell.core.scheduler.recover", recover)


def a_new_worker_is_not_told_what_was_said(patch: pytest.MonkeyPatch) -> None:
    admit = Device.__init__

    def init(self: Device, *args: Any, **named: Any) -> None:
        admit(self, *args, **named)
        forgetful = self.echo.admit
        self.admit = lambda id, prompt, most, sampling, output=(): forgetful(id, prompt, most, sampling)  # type: ignore[misc,assignment]

    patch.setattr(Device, "__init__", init)


def an_end_is_lost_if_the_client_leaves_at_once(patch: pytest.MonkeyPatch) -> None:
    def cancel(self: Engine, request: int) -> None:
        for index, event in enumerate(self._inbox):
            if isinstance(event, Submitted) and event.request == request:
                del self._inbox[index]
                return
        self.post(Cancel(request))

    patch.setattr(Engine, "_cancel", cancel)


def a_cancel_of_what_has_ended_is_an_error(patch: pytest.MonkeyPatch) -> None:
    def cancel(self: Scheduler, event: Cancel) -> None:
        request = self.state.requests[event.request]
        self.repeats.left = 0
        self.state.finish(request, "cancelled", self.state.visible_tokens(request))

    patch.setattr(Scheduler, "_cancel", cancel)


def a_token_behind_the_end_is_handed_out(patch: pytest.MonkeyPatch) -> None:
    def counting(self: Engine, result: StepResult, ends: Any) -> list[tuple[int, int]]:
        return [row for row in result.tokens if row[0] in self._streams]

    patch.setattr(Engine, "_counting", counting)


def only_the_first_alarm_rings(patch: pytest.MonkeyPatch) -> None:
    set_alarm = Engine._set_alarm

    def once(self: Engine, at_ns: int) -> None:
        if self._alarm is None:
            set_alarm(self, at_ns)

    patch.setattr(Engine, "_set_alarm", once)


def a_listener_hears_twice_that_it_is_over(patch: pytest.MonkeyPatch) -> None:
    end = Stream._end

    def twice(self: Stream) -> None:
        listener = self._listener
        end(self)
        if listener is not None:
            listener.ended()

    patch.setattr(Stream, "_end", twice)


def a_snapshot_forgets_what_the_policy_remembers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "memory", lambda self: None)


def a_step_takes_as_long_as_it_takes(patch: pytest.MonkeyPatch) -> None:
    execute = Device.execute

    def restless(self: Device, batch: Launch) -> StepResult:
        result = execute(self, batch)
        result.elapsed_ns += random.SystemRandom().randrange(1000)
        return result

    patch.setattr(Device, "execute", restless)


def a_broken_backend_goes_unnoticed(patch: pytest.MonkeyPatch) -> None:
    def shrug(self: Engine, error: Exception, during: Sequence[object]) -> None:
        self._closed = True
        self.scheduler.state.inflight.clear()
        self._dismiss()
        self._news.set()

    patch.setattr(Engine, "_break_down", shrug)


def a_released_request_stays_with_the_worker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Process, "release", lambda self, request: self._orders.release(request))


def fails(scenario: Scenario) -> bool:
    return scenario.fails(Lost)


def anything(scenario: Scenario) -> bool:
    return True


BUGS: dict[Plant, Callable[[Scenario], bool]] = {
    a_host_page_is_lost_with_the_device: fails,
    a_token_is_sampled_again_after_a_failure: fails,
    a_new_worker_is_not_told_what_was_said: lambda it: it.house.process and fails(it),
    an_end_is_lost_if_the_client_leaves_at_once: lambda it: any(each.leaves_ns == 1 for each in it.visits),
    a_cancel_of_what_has_ended_is_an_error: lambda it: any(each.cancels > 1 for each in it.visits),
    a_token_behind_the_end_is_handed_out: lambda it: it.house.depth > 1 and it.house.instant,
    only_the_first_alarm_rings: lambda it: "dice" in it.house.policy,
    a_listener_hears_twice_that_it_is_over: anything,
    a_snapshot_forgets_what_the_policy_remembers: lambda it: it.house.segment_turns > 0,
    a_step_takes_as_long_as_it_takes: lambda it: it.seed % 8 == 0,
    a_broken_backend_goes_unnoticed: lambda it: it.fails(Raises),
    a_released_request_stays_with_the_worker: lambda it: it.house.process,
}


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_it_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant(monkeypatch)
    for seed in range(WITHIN):
        scenario = scenario_of(seed)
        if BUGS[plant](scenario) and failure_of(scenario, tmp_path, twice=seed % 8 == 0):
            return
    pytest.fail(f"not caught in {WITHIN} seeds")


def test_a_failure_shrinks_to_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The end that is lost needs one visit, which leaves at once, and nothing else."""
    an_end_is_lost_if_the_client_leaves_at_once(monkeypatch)
    for seed in range(WITHIN):
        scenario = scenario_of(seed)
        if BUGS[an_end_is_lost_if_the_client_leaves_at_once](scenario):
            failure = failure_of(scenario, tmp_path)
            if failure is not None:
                break
    assert failure is not None
    small, error = smallest(scenario, failure, lambda it: failure_of(it, tmp_path))
    assert isinstance(error, TimeoutError)
    assert [(each.leaves_ns, each.max_tokens, len(each.prompt)) for each in small.visits] == [(1, 1, 1)]
    assert [*small.faults, *small.twists, *small.acts] == []
    assert (small.house.policy, small.house.allocator, small.house.depth) == ("fcfs", "paged", 1)
