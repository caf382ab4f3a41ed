"""Recorded decode steps: which sizes there are, which one a step takes, and what a recording cannot hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs the extra `model`")

from stepwell.backends.device.graphs import ByHand, Direct, Graphs, graph_sizes  # noqa: E402
from stepwell.tests.backends.device.tape import Tape, refusal  # noqa: E402


@given(st.integers(1, 4096))
def test_sizes_grow_by_little_and_end_at_the_limit(limit: int) -> None:
    sizes = graph_sizes(limit)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == limit
    for rows in range(1, limit + 1):
        taken = next(size for size in sizes if size >= rows)
        assert taken - rows <= max(7, rows / 8), (rows, taken)
    assert len(sizes) <= 12 + 8 * max(limit.bit_length() - 6, 0) + 8


def test_sizes_by_example() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(6) == [1, 2, 4, 6]
    assert graph_sizes(40) == [1, 2, 4, 8, 16, 24, 32, 40]
    assert graph_sizes(256)[-10:] == [120, 128, 144, 160, 176, 192, 208, 224, 240, 256]


@given(st.sets(st.integers(1, 40), min_size=1), st.integers(1, 50))
def test_a_step_takes_the_smallest_graph_that_is_large_enough(sizes: set[int], rows: int) -> None:
    done: list[tuple[int, int]] = []
    graphs = Graphs(lambda rows, longest: done.append((rows, longest)), sorted(sizes), Direct())
    assert sorted(done) == [(size, 0) for size in sorted(sizes)]
    assert done[0] == (max(sizes), 0), "the largest decides the pool"
    assert graphs.sizes == sorted(sizes)
    done.clear()
    graphs.run(rows, 33)
    enough = [size for size in sizes if size >= rows]
    assert done == [(min(enough), 0) if enough else (rows, 33)]


def test_what_time_does_not_allow_is_done_by_a_larger_one() -> None:
    done: list[int] = []
    graphs = Graphs(lambda rows, longest: done.append(rows), [1, 2, 8], Direct(), within_s=0.0)
    assert graphs.sizes == done == [8]
    graphs.run(1, 5)
    assert done == [8, 8]


def test_by_hand_nothing_is_padded() -> None:
    done: list[tuple[int, int]] = []
    hand = ByHand(lambda rows, longest: done.append((rows, longest)))
    hand.run(3, 17)
    assert (done, hand.sizes, hand.nbytes) == ([(3, 17)], [], 0)


# ------------------------------------------------------------------------------------------------ the tape itself


def test_a_tape_repeats_operations_on_the_same_memory_and_asks_the_host_nothing() -> None:
    here, out, asked = torch.zeros(3), torch.zeros(3), [1.0]

    def work() -> None:
        out.copy_((here + asked[0]).view(1, 3)[0].mul_(2.0))

    again = Tape().record(work)
    asked[0] = 100.0
    here.fill_(5.0)
    again()
    assert out.tolist() == [12.0, 12.0, 12.0]
    here.fill_(0.0)
    again()
    assert out.tolist() == [2.0, 2.0, 2.0]


def test_a_tape_refuses_what_a_graph_cannot_hold() -> None:
    it = torch.tensor([1.0, 0.0])
    assert "item" in refusal(lambda: it.fill_(float(it.sum())))
    assert "index" in refusal(lambda: it.add_(it[it > 0].sum()))
    assert "nonzero" in refusal(lambda: it.nonzero())
    assert refusal(lambda: it.mul_(2.0)) == ""
