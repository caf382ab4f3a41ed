"""The workload itself, and the functions that make one from another."""

from __future__ import annotations

import msgspec
import pytest

from stepwell.core.errors import UserError
from stepwell.sim.workload.request import TraceRequest, Workload, rate_profile, shared_key_share
from stepwell.sim.workload.transform import clip, limit, page_keys, scale_rate, shift_to_zero


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
        "arrival_ns": 101,
        "prompt_tokens": 6,
        "output_tokens": 7,
        "klass": "batch",
        "tenant": "t",
        "keys": [1],
        "cancel_ns": 900,
        "priority": -1,
        "program": "loop",
    }.items():
        changed = [msgspec.structs.replace(base.requests[0], **{field: value}), *base.requests[1:]]
        digests.add(workload(*changed).digest())
    assert len(digests) == 11


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
