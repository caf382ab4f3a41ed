"""Swaps beside the computation: whatever the two queues' speeds, nobody reads or writes a page too early."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs the extra `model`")

import torch

from stepwell.backends.device import swap
from stepwell.backends.device.streams import PlainStreams, Streams
from stepwell.backends.device.swap import PageMover, touched
from stepwell.backends.kernels.pages import reference
from stepwell.backends.kv_cache import KVCache
from stepwell.backends.torch_backend import TorchBackend
from stepwell.core.instructions import Launch
from stepwell.core.sampling import GREEDY, SamplingParams
from stepwell.tests.backends.driving import Hand, make, serve
from stepwell.tests.backends.saturation import House, check_identity, crowd_of, pages_of
from stepwell.tests.backends.tiny import SHAPE, write_gguf
from stepwell.tests.helpers.queues import LateStreams, QueuedStreams

PAGES, HOST = 12, 9
RESTLESS = "stepwell.tests.backends.restless:Restless"


def pools(pages: int = PAGES) -> tuple[torch.Tensor, torch.Tensor]:
    """Of two layers, pages of two positions."""
    keys = torch.zeros(2, pages + 1, 2, 1, 3)
    return keys, torch.zeros_like(keys)


class Play:
    """Random steps by the scheduler's rules on a pool whose pages say what was written last; wrong numbers raise.

    Requests own pages; a step reads all pages of those that run, and writes one of each.  Who is swapped out in a step
    gives its pages to others from the next step on; who is swapped in runs from the next step on.
    """

    def __init__(self, streams: QueuedStreams, upto: Callable[[int], int]) -> None:
        self.streams, self.upto = streams, upto
        self.keys, self.values = pools()
        self.mover = PageMover(self.keys, self.values, HOST, reference, streams)
        self.free, self.host = list(range(PAGES)), list(range(HOST))
        self.tables: dict[int, list[int]] = {}
        self.stored: dict[int, list[int]] = {}
        self.says: dict[int, list[float]] = {}
        """What each request's pages hold, in the order of its table, by the end of the main queue."""
        self.running: set[int] = set()
        self.came: set[int] = set()
        """Those of them who run for the first time since they are there."""
        self.stamp = 0.0
        self.reads = 0

    def pick(self, among: Any) -> list[int]:
        return [each for each in sorted(among) if self.upto(1)]

    def step(self) -> None:
        """One launch: swaps, copies, then everybody who runs computes."""
        out, back, freed, launch = self.pick(self.running), self.pick(self.stored), [], Launch(1)
        for request in out:
            table = self.tables[request]
            if len(table) > len(self.host):
                continue
            freed += table
            self.stored[request] = [self.host.pop(self.upto(len(self.host) - 1)) for _ in table]
            launch.swap_out.append((request, table, self.stored[request]))
            self.running.discard(request)
            self.came.discard(request)
            del self.tables[request]
        host_freed: list[int] = []
        coming = []
        for request in back:
            stored = self.stored[request]
            if len(stored) > len(self.free):
                continue
            self.tables[request] = table = [self.free.pop() for _ in stored]
            launch.swap_in.append((request, table, stored))
            host_freed += stored
            del self.stored[request]
            coming.append(request)
        fresh = self.begin()
        if launch.swap_out:
            self.mover.swap_out(launch.swap_out)
        if launch.swap_in:
            self.mover.swap_in(launch.swap_in)
        self.compute(launch, fresh)
        self.running |= {*fresh, *coming}
        self.came = {*fresh, *coming}
        self.free += freed
        self.host += host_freed
        for queue in (self.streams.main, self.streams.side):
            for _ in range(self.upto(6)):
                self.streams.advance(queue)

    def begin(self) -> list[int]:
        """Somebody new, if there is room: nothing is said on its pages that it has not written."""
        count = self.upto(3)
        if not 0 < count <= len(self.free):
            return []
        request = 1 + max([*self.says, 0])
        self.tables[request] = [self.free.pop(0) for _ in range(count)]
        self.says[request] = []
        return [request]

    def compute(self, launch: Launch, fresh: list[int]) -> None:
        launch.joined += sorted(self.came)
        launch.slices += [(request, 0, 1, False) for request in fresh]
        self.mover.settle(touched(launch, lambda id: self.tables[id]))
        for request in [*sorted(self.running), *fresh]:
            table, said = self.tables[request], list(self.says[request])
            self.stamp += 1
            written = range(len(table)) if request in fresh else [self.upto(len(table) - 1)]
            self.says[request] = [self.stamp if place in written else said[place] for place in range(len(table))]
            self.streams.compute(partial(self.run, table, said, [table[place] for place in written], self.stamp))

    def run(self, table: list[int], said: list[float], written: list[int], stamp: float) -> None:
        for page, number in zip(table, said, strict=False):
            assert (self.keys[:, page] == number).all(), (page, number, self.keys[:, page])
            assert (self.values[:, page] == -number).all()
            self.reads += 1
        self.keys[:, written] = stamp
        self.values[:, written] = -stamp


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data(), staging=st.sampled_from([1, 96, 1 << 20]))
def test_however_the_queues_run_every_page_is_read_and_written_in_time(data: st.DataObject, staging: int) -> None:
    """Pages of 48 bytes: with the smaller buffers a swap takes several turns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swap, "STAGING_BYTES", staging)
        play = Play(QueuedStreams(), lambda most: data.draw(st.integers(0, most)))
    for _ in range(data.draw(st.integers(2, 12))):
        play.step()
    play.streams.finish()


@pytest.mark.parametrize("deaf", ["main", "side"])
def test_a_queue_that_does_not_wait_is_noticed(deaf: str) -> None:
    """So that the test above means something."""

    def lives(deaf: str, seed: int) -> bool:
        dice = random.Random(seed)
        play = Play(QueuedStreams(deaf), lambda most: dice.randint(0, most))
        try:
            for _ in range(40):
                play.step()
            play.streams.finish()
        except AssertionError:
            return False
        assert play.reads > 20
        return True

    assert all(lives("", seed) for seed in range(20))
    assert not all(lives(deaf, seed) for seed in range(20))


# ------------------------------------------------------------------------------------------------ on the processor


@pytest.mark.parametrize("streams", [PlainStreams(), LateStreams()])
@pytest.mark.parametrize("staging", [1, 200, 1 << 20])
def test_pages_come_back_as_they_went(streams: Streams, staging: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever host pages they were in; neighbours are copied together."""
    monkeypatch.setattr(swap, "STAGING_BYTES", staging)
    keys, values = pools()
    keys[:] = torch.randn(keys.shape)
    values[:] = torch.randn(values.shape)
    before = keys.clone(), values.clone()
    mover = PageMover(keys, values, HOST, reference, streams)
    mover.swap_out([(1, [3, 4, 11], [5, 6, 0]), (2, [0], [8])])
    mover.settle([3, 4, 11, 0])
    for page in (3, 4, 11, 0):
        keys[:, page] = values[:, page] = torch.nan
    mover.swap_in([(2, [1], [8]), (1, [0, 3, 5], [5, 6, 0])])
    mover.settle([5])
    for now, then in zip((keys, values), before, strict=True):
        assert torch.equal(now[:, [1, 0, 3, 5]], then[:, [0, 3, 4, 11]])
    assert mover.copy_ns(8) > 0


def test_runs_of_neighbours() -> None:
    assert swap._runs([5, 6, 7, 0, 1, 9]) == [(0, 3), (3, 5), (5, 6)]
    assert swap._runs([2]) == [(0, 1)]


def test_times_of_copies_are_told_when_they_are_known() -> None:
    """Of those that are done, if they are the ones that were asked for; else at the latest speed; 0 before any."""
    streams = QueuedStreams()
    mover = PageMover(*pools(), HOST, reference, streams)
    mover.swap_out([(1, [1, 2], [0, 1])])
    assert mover.copy_ns(2) == 0
    streams.finish()
    assert mover.copy_ns(2) == 1000
    mover.swap_in([(1, [3, 4, 5, 6], [0, 1, 0, 1])])
    assert mover.copy_ns(4) == 2000
    assert mover.copy_ns(0) == 0
    streams.finish()
    assert mover.copy_ns(1) == 250


def test_a_copy_within_the_device_and_a_clearing_wait_too() -> None:
    streams = LateStreams()
    cache = KVCache(SHAPE, 4, 4, 2, torch.float32, torch.device("cpu"), streams=streams)
    cache.keys[:, 0] = 7
    cache.swap_out([(1, [0], [2])])
    cache.clear([0])
    assert streams.late == 1
    cache.swap_in([(1, [1], [2])])
    cache.copy([(1, 3)])
    assert (cache.keys[:, 3] == 7).all()
    assert streams.late == 2
    assert (cache.keys[:, 0] == 0).all()


# ------------------------------------------------------------------------------------------------ under the engine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("tiny") / "model.gguf")


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateStreams:
    """Of every backend that is made meanwhile."""
    streams = LateStreams()
    monkeypatch.setattr("stepwell.backends.kv_cache.streams_of", lambda device: streams)
    return streams


def test_the_first_step_that_reads_a_page_is_the_one_that_waits(model: Path, late: LateStreams) -> None:
    """A swap-in rides beside the steps of others until its request runs again."""
    backend = make(model, host_pages=8)
    hand = Hand(backend)
    free = SamplingParams(temperature=0.0, ignore_eos=True)
    for request in (1, 2):
        hand.begin(request, [5, 6, 7, request], 16, free)
    hand.decode(2, joined=[1, 2])
    table = list(backend._rows[1].table)
    hand.launch(decode=True, left=[1], swap_out=[(1, table, [3])])
    hand.launch(decode=True, tables=[(1, [50])], swap_in=[(1, [50], [3])])
    hand.decode(2)
    assert late.late == 0
    hand.decode(3, joined=[1])
    assert late.late == 2
    lone = Hand(make(model))
    lone.begin(1, [5, 6, 7, 1], 16, free)
    lone.decode(5, joined=[1])
    assert hand.answers[1] == lone.answers[1]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("allocator", ["paged", "prefix"])
def test_copies_that_are_as_late_as_can_be_change_no_token(
    model: Path, late: LateStreams, allocator: str, depth: int
) -> None:
    asked = crowd_of(24, SHAPE.vocab_size, prompts=(1, 24), answers=(6, 14), seed=depth)
    pages = pages_of(asked, 8, 4)
    limits = {"token_budget": 64, "running_limit": 24}
    backend = make(model, pages=pages, host_pages=pages // 2, page_size=4, **limits)
    scheduler = {**limits, "depth": depth, "options": {"percent": 40.0}}
    house = House(backend, RESTLESS, scheduler, allocator)
    crowd = house.serve(asked)
    assert house.preemptions["swap"] > 4, house
    assert late.late > 8
    check_identity(asked, [crowd], House(make(model, pages=200, page_size=16), scheduler={"running_limit": 16}))


def test_a_backend_that_does_not_wait_says_something_else(
    model: Path, late: LateStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the test above means something."""
    seeded = [SamplingParams(temperature=1.2, seed=index) for index in range(8)]
    requests = [([index + 1] * (9 + index), 20, seeded[index]) for index in range(8)]
    sizes = {"pages": 20, "page_size": 4, "host_pages": 16}
    expected = serve(make(model, **sizes), requests)
    assert expected.preemptions["swap"]
    made: TorchBackend = make(model, **sizes)
    monkeypatch.setattr(made._cache, "settle", lambda pages: None)
    assert serve(made, requests).answers != expected.answers


def test_the_time_of_copies_is_reported_with_their_step(model: Path) -> None:
    backend = make(model, host_pages=4)
    hand = Hand(backend)
    hand.begin(1, [5, 6, 7], 16, GREEDY)
    table = list(backend._rows[1].table)
    out = backend.execute(Launch(7, swap_out=[(1, table, [0])]))
    assert 0 < out.copy_ns < out.elapsed_ns
    assert not backend.execute(Launch(8, tables=[(1, table)], slices=[(1, 0, 3, True)])).copy_ns
