"""The workload itself, and the functions that make one from another."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.errors import UserError
from stepwell.sim.workload.request import TraceRequest, Workload, rate_profile, shared_key_share
from stepwell.sim.workload.transform import clip, first, limit, page_keys, sample, scale_rate, shift_to_zero, window


def workload(*requests: TraceRequest, key_tokens: int = 0) -> Workload:
    return Workload("made", list(requests), key_tokens=key_tokens)


def three() -> Workload:
    return workload(
        TraceRequest(100, 5, 6), TraceRequest(201, 700, 8, keys=[1, 2], cancel_ns=301), TraceRequest(400, 9, 9)
    )


def test_requests_are_sorted_stably_and_the_given_list_is_left_alone() -> None:
    given = [TraceRequest(5, 1, 1), TraceRequest(3, 2, 2), TraceRequest(5, 3, 3), TraceRequest(3, 4, 4)]
    assert [r.prompt_tokens for r in Workload("made", given).requests] == [2, 4, 1, 3]
    assert [r.prompt_tokens for r in given] == [1, 2, 3, 4]


def test_the_digest_depends_on_content_only() -> None:
    base = three()
    assert base.digest() == msgspec.structs.replace(base, name="other", notes=["x"]).digest()
    assert len(base.digest()) == 64
    digests = {base.digest(), msgspec.structs.replace(base, key_tokens=512).digest()}
    for field, value in {
        "arrival_ns": 401,
        "prompt_tokens": 6,
        "output_tokens": 7,
        "klass": "batch",
        "tenant": "t",
        "keys": [1],
        "cancel_ns": 900,
        "priority": -1,
        "program": "loop",
        "max_tokens": 9,
        "expires_ns": 900,
        "cancel_tokens": 3,
        "parent": 1,
        "answer_keys": (1,),
    }.items():
        changed = [*base.requests[:2], msgspec.structs.replace(base.requests[2], **{field: value})]
        digests.add(workload(*changed).digest())
    assert len(digests) == 16


def test_rate_profile_by_hand() -> None:
    second = 1_000_000_000
    profile = rate_profile([0, second, second, 4 * second])  # gaps 1, 0, 3: mean 4/3, deviation sqrt(14/9)
    assert profile.rate_per_s == pytest.approx(0.75)
    assert profile.gap_cv == pytest.approx((14 / 9) ** 0.5 / (4 / 3))
    assert (profile.head_rate_per_s, profile.body_rate_per_s) == (1.0, pytest.approx(2 / 3))
    assert profile.simultaneous == 1
    for few in ([], [7], [7, 7]):
        assert rate_profile(few).rate_per_s == 0
        assert rate_profile(few).gap_cv == 0
        assert rate_profile(few).head_body_ratio == 1


def test_the_head_of_a_few_requests_is_no_warning() -> None:
    def told(count: int) -> str:
        hasty = [0, 1, 2, *(10**9 * each for each in range(1, count - 2))]
        return " ".join(workload(*(TraceRequest(at, 1, 1) for at in hasty)).describe())

    assert "the first tenth" not in told(19)
    assert "the first tenth" in told(20)


def test_scale_rate_is_exact_and_keeps_patience() -> None:
    doubled = scale_rate(three(), 2.0)
    assert [r.arrival_ns for r in doubled.requests] == [50, 100, 200]
    assert [r.cancel_ns for r in doubled.requests] == [0, 200, 0]
    late = workload(TraceRequest(3 * 10**18 + 7, 1, 1))
    assert scale_rate(late, 1.0).requests == late.requests
    assert scale_rate(late, 0.5).requests[0].arrival_ns == 6 * 10**18 + 14
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UserError):
            scale_rate(late, bad)


def test_shift_limit_and_clip_leave_their_argument_alone() -> None:
    base = three()
    before = base.digest()
    shifted = shift_to_zero(base)
    assert [(r.arrival_ns, r.cancel_ns) for r in shifted.requests] == [(0, 0), (101, 201), (300, 0)]
    assert [r.prompt_tokens for r in limit(base, 1, skip=1).requests] == [700]
    assert len(limit(base, 10)) == 3
    clipped = clip(msgspec.structs.replace(base, key_tokens=512), max_prompt=512, max_output=8)
    assert [(r.prompt_tokens, r.output_tokens, r.keys) for r in clipped.requests] == [
        (5, 6, []),
        (512, 8, [1]),
        (9, 8, []),
    ]
    assert clipped.notes == ["2 requests clipped to prompt 512, output 8"]
    assert base.digest() == before
    for wrong in (lambda: limit(base, 0), lambda: limit(base, 1, -1), lambda: clip(base, max_prompt=0)):
        with pytest.raises(UserError):
            wrong()


def test_shared_key_share_counts_keys_seen_before() -> None:
    made = workload(TraceRequest(1, 9, 1, keys=[1, 2]), TraceRequest(2, 9, 1, keys=[1, 3]), TraceRequest(3, 9, 1))
    assert shared_key_share(made) == 0.25
    assert shared_key_share(workload(TraceRequest(1, 9, 1))) == 0.0


@pytest.mark.parametrize("page_size", [1, 16, 100, 512, 600])
def test_page_keys_agree_exactly_where_prefixes_do(page_size: int) -> None:
    a = TraceRequest(1, 1500, 1, keys=[7, 8, 9])
    b = TraceRequest(2, 1300, 1, keys=[7, 8, 10])
    left, right = page_keys(a, 512, page_size), page_keys(b, 512, page_size)
    assert (len(left), len(right)) == (1500 // page_size, 1300 // page_size)
    assert len(set(left)) == len(left)
    assert len(set(right)) == len(right)
    shared = 1024 // page_size
    assert left[:shared] == right[:shared]
    assert not set(left[shared:]) & set(right[shared:])
    assert page_keys(TraceRequest(1, 1500, 1), 512, page_size) == []


def test_moving_a_request_moves_its_deadline_too() -> None:
    late = workload(TraceRequest(100, 1, 1), TraceRequest(400, 1, 1, cancel_ns=450, expires_ns=430))
    for moved, at in ((scale_rate(late, 2.0), 200), (shift_to_zero(late), 300), (window(late, start_s=2e-7), 100)):
        each = moved.requests[-1]
        assert (each.arrival_ns, each.cancel_ns, each.expires_ns) == (at, at + 50, at + 30)


def test_a_window_counts_from_the_first_arrival_and_begins_at_0() -> None:
    second = 10**9
    made = workload(*(TraceRequest(7 * second + at * second, at + 1, 1) for at in range(6)))
    part = window(made, start_s=1.5, end_s=4.0)
    assert [(r.arrival_ns, r.prompt_tokens) for r in part.requests] == [(second // 2, 3), (3 * second // 2, 4)]
    assert part.notes == ["2 of 6 requests, from 1.5 s to 4 s"]
    assert [r.prompt_tokens for r in window(made, start_s=4.0).requests] == [5, 6]
    assert len(window(made)) == 6
    for start, end in ((9.0, 0.0), (-1.0, 0.0), (3.0, 3.0), (3.0, 2.0), (float("nan"), 0.0)):
        with pytest.raises(UserError):
            window(made, start_s=start, end_s=end)


def test_too_long_requests_are_dropped_where_that_is_asked_for() -> None:
    left = clip(three(), max_prompt=9, max_output=8, over="drop")
    assert [(r.prompt_tokens, r.output_tokens) for r in left.requests] == [(5, 6)]
    assert left.notes == ["2 requests dropped: prompt above 9 or output above 8"]
    with pytest.raises(UserError, match="every request is longer"):
        clip(three(), max_output=1, over="drop")


def family(count: int = 400) -> Workload:
    """Programs of five requests that take turns, and choices beside every seventh prompt."""
    made: list[TraceRequest] = []
    for at in range(count):
        program = f"p{at % 80}" if at % 3 else ""
        made.append(TraceRequest(at, 1 + at, 1, program=program))
        if at % 7 == 0:
            parent = len(made)
            made += [TraceRequest(at, 1 + at, 2 + other, program=program, parent=parent) for other in range(2)]
    return workload(*made)


@given(share=st.floats(0.05, 1.0), seed=st.integers(0, 2**64 - 1), by=st.sampled_from(["request", "program"]))
def test_a_sample_keeps_programs_and_choices_whole_and_grows_with_its_share(share: float, seed: int, by: str) -> None:
    base = family()
    half = sample(base, share / 2, seed=seed, by=by)  # type: ignore[arg-type]
    kept = sample(base, share, seed=seed, by=by)  # type: ignore[arg-type]
    names = [(r.arrival_ns, r.output_tokens) for r in kept.requests]
    assert {(r.arrival_ns, r.output_tokens) for r in half.requests} <= set(names)
    assert sample(base, 1.0, seed=seed, by=by).requests == base.requests  # type: ignore[arg-type]
    for each in kept.requests:
        if each.parent:
            assert kept.requests[each.parent - 1].prompt_tokens == each.prompt_tokens
    assert sum(bool(r.parent) for r in kept.requests) == 2 * sum(r.arrival_ns % 7 == 0 for r in kept.requests) / 3
    if by == "program":
        whole = {r.program for r in kept.requests if r.program}
        wanted = [r for r in base.requests if r.program in whole]
        assert [r.arrival_ns for r in kept.requests if r.program] == [r.arrival_ns for r in wanted]


def test_a_sample_is_about_as_large_as_asked() -> None:
    base = family(4000)
    for by in ("request", "program"):
        assert len(sample(base, 0.3, seed=4, by=by)) / len(base) == pytest.approx(0.3, abs=0.08)
    assert sample(base, 0.3, seed=4).requests != sample(base, 0.3, seed=5).requests
    for bad in (0.0, 1.5, float("nan"), -1.0):
        with pytest.raises(UserError):
            sample(base, bad)
    with pytest.raises(UserError, match="leaves no request"):
        sample(workload(TraceRequest(1, 1, 1)), 1e-9)


def test_a_parent_left_out_is_followed_by_the_first_of_the_others() -> None:
    made = workload(TraceRequest(0, 5, 1), *(TraceRequest(at, 5, 2, parent=1) for at in (1, 2, 3)))
    assert [r.parent for r in limit(made, 3, skip=1).requests] == [0, 1, 1]
    assert [r.parent for r in window(made, start_s=2e-9).requests] == [0, 1]
    assert [r.parent for r in first(made, 2).requests] == [0, 1]
