"""Timelines of three requests, computed on paper first.  The comments are the paper.

Step time: 10 + prefill tokens + decoding requests + 5 per page copied (``ROUND``).  "A 6" is a slice of 6 tokens of A,
"A+" that A decodes.  A request not in the decode group counts as a prefill of one token.
"""

from __future__ import annotations

from stepwell.core.limits import SchedulerLimits
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.runs import Pool, build, simulate
from stepwell.tests.helpers.timeline import Story

A, B, C = 1, 2, 3


def tokens_ns(stories: dict[int, Story]) -> list[list[int]]:
    return [stories[id].token_ns for id in (A, B, C)]


def preemptions(stories: dict[int, Story]) -> list[list[tuple[int, str, int, int, int]]]:
    """Per request: (when, mode, for whom, tokens computed, pages given up)."""
    return [
        [(at, it.mode, it.beneficiary, it.tokens, it.pages) for at, it in stories[id].preemptions] for id in (A, B, C)
    ]


def test_fcfs_chunks_the_prefills_within_the_budget() -> None:
    requests = [TraceRequest(0, 6, 3), TraceRequest(5, 10, 2), TraceRequest(5, 3, 4)]
    scheduler = build("fcfs", pool=Pool(64, 4), limits=SchedulerLimits(token_budget=8, running_limit=4))
    run = simulate(scheduler, requests)
    #  0: A 6             10 + 6         = 16 → 16  A1
    # 16: A+, B 7 of 10   10 + 1 + 7     = 18 → 34  A2       (the budget of 8 is spent: C waits)
    # 34: A+, B 3, C 3    10 + 1 + 3 + 3 = 17 → 51  A3 stop, B1, C1
    # 51: B+, C+          10 + 2         = 12 → 63  B2 stop, C2
    # 63: C+              10 + 1         = 11 → 74  C3
    # 74: C+                             = 11 → 85  C4 stop
    assert tokens_ns(run.stories) == [[16, 34, 51], [51, 63], [51, 63, 74, 85]]
    assert [run.stories[id].reason for id in (A, B, C)] == ["stop"] * 3
    assert run.stories[B].slices == [(16, (B, 0, 7, False)), (34, (B, 7, 3, True))]
    assert preemptions(run.stories) == [[], [], []]


TIGHT = [TraceRequest(0, 7, 8), TraceRequest(0, 7, 10), TraceRequest(0, 3, 2)]
"""Six pages of four: A and B fill three each after six tokens, and then both want a fourth."""


def test_fcfs_recomputes_the_latest_arrival_when_pages_run_out() -> None:
    scheduler = build("fcfs", pool=Pool(6, 4), limits=SchedulerLimits(token_budget=32, running_limit=4))
    run = simulate(scheduler, TIGHT)
    #   0: A 7, B 7, C 3   10 + 17 = 27 → 27  A1 B1 C1   2 + 2 + 1 of 6 pages (1 must stay free beside running ones)
    #  27: A+ B+ C+        10 + 3  = 13 → 40  A2 B2 C2 stop
    #  40: A+ B+           10 + 2  = 12 → 52  A3 B3      both take a third page; none is left
    #  52, 64, 76: A+ B+            = 12 → 64, 76, 88    A and B have computed 12 tokens: their pages are full
    #  88: B out, A+       10 + 1  = 11 → 99  A7         A takes one of the three pages that B gave up
    #  99: A+                       = 11 → 110 A8 stop   B needs 4 pages for 7 + 6 tokens and 1 spare: 2 are free
    # 110: B 13            10 + 13 = 23 → 133 B7
    # 133, 144, 155: B+             = 11 → 144, 155, 166 B8 B9 B10 stop
    assert tokens_ns(run.stories) == [
        [27, 40, 52, 64, 76, 88, 99, 110],
        [27, 40, 52, 64, 76, 88, 133, 144, 155, 166],
        [27, 40],
    ]
    assert preemptions(run.stories) == [[], [(88, "recompute", A, 12, 3)], []]
    assert run.stories[B].admissions == [0, 110]


def test_swap_keeps_the_work_and_waits_for_the_copies() -> None:
    scheduler = build("swap", pool=Pool(6, 4, 4), limits=SchedulerLimits(token_budget=32, running_limit=4))
    run = simulate(scheduler, TIGHT)
    # Up to 88 as above.
    #  88: B out (3 pages)  10 + 15     = 25 → 113     A lacks a page until the copy is done, and sits out
    # 113: A 1              10 + 1      = 11 → 124 A7  alone, as a slice; B needs 4 and 1 spare of the 3 - 1 free
    # 124: A+               10 + 1      = 11 → 135 A8 stop
    # 135: B in (3 pages)   10 + 15     = 25 → 160
    # 160: B 1              10 + 1      = 11 → 171 B7
    # 171, 182, 193: B+                 = 11 → 182, 193, 204  B8 B9 B10 stop
    assert tokens_ns(run.stories) == [
        [27, 40, 52, 64, 76, 88, 124, 135],
        [27, 40, 52, 64, 76, 88, 171, 182, 193, 204],
        [27, 40],
    ]
    assert preemptions(run.stories) == [[], [(88, "swap", A, 12, 3)], []]
    assert run.stories[B].admissions == [0]
    assert run.stories[B].resumptions == [135]


def test_chat_takes_the_seat_of_batch_which_keeps_its_work() -> None:
    requests = [TraceRequest(0, 8, 6, "batch"), TraceRequest(0, 8, 6, "batch"), TraceRequest(30, 5, 2, "chat")]
    scheduler = build("chat-batch", pool=Pool(64, 4, 16), limits=SchedulerLimits(token_budget=32, running_limit=2))
    run = simulate(scheduler, requests)
    #   0: A 8, B 8                 10 + 16         = 26 → 26   A1 B1
    #  26: A+ B+                    10 + 2          = 12 → 38   A2 B2      (C comes at 30)
    #  38: B out (9 tokens,
    #      3 pages), C 5, A pauses  10 + 15 + 5     = 30 → 68   C1
    #  68: C+, A 1                  10 + 1 + 1      = 12 → 80   A3 C2 stop
    #  80: B in (3 pages), A+       10 + 15 + 1     = 26 → 106  A4
    # 106: A+, B 1                  10 + 1 + 1      = 12 → 118  A5 B3
    # 118: A+ B+                    10 + 2          = 12 → 130  A6 stop, B4
    # 130, 141: B+                                  = 11 → 141, 152  B5 B6 stop
    assert tokens_ns(run.stories) == [
        [26, 38, 80, 106, 118, 130],
        [26, 38, 118, 130, 141, 152],
        [68, 80],
    ]
    assert preemptions(run.stories) == [[], [(38, "swap", C, 9, 3)], []]


def test_static_starts_the_next_batch_when_the_last_request_ends() -> None:
    requests = [TraceRequest(0, 4, 2), TraceRequest(0, 4, 4), TraceRequest(5, 4, 2)]
    scheduler = build("static", pool=Pool(64, 4), options={"batch_size": 2})
    run = simulate(scheduler, requests)
    #  0: A 4, B 4   10 + 8 = 18 → 18  A1 B1
    # 18: A+ B+      10 + 2 = 12 → 30  A2 stop, B2    (C waits although a seat is free)
    # 30, 41: B+            = 11 → 41, 52  B3 B4 stop
    # 52: C 4        10 + 4 = 14 → 66  C1
    # 66: C+                = 11 → 77  C2 stop
    assert tokens_ns(run.stories) == [[18, 30], [18, 30, 41, 52], [66, 77]]


def test_static_fills_a_batch_until_somebody_decodes() -> None:
    requests = [TraceRequest(0, 4, 2), TraceRequest(5, 4, 3), TraceRequest(20, 4, 2)]
    scheduler = build("static", pool=Pool(64, 4), options={"batch_size": 3})
    run = simulate(scheduler, requests)
    #  0: A 4        10 + 4 = 14 → 14  A1
    # 14: B 4               = 14 → 28  B1   (nobody decodes while the batch fills)
    # 28: C 4               = 14 → 42  C1
    # 42: A+ B+ C+  10 + 3  = 13 → 55  A2 stop, B2, C2 stop
    # 55: B+                = 11 → 66  B3 stop
    assert tokens_ns(run.stories) == [[14, 55], [28, 55, 66], [42, 55]]
