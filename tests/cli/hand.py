"""A run worked out on paper, for everything that reads runs and journals.

Pages of 4 tokens, 10 of them; a step takes 10 ns, and 1 ns for each prefill token and each decoding request.
Two requests with prompts of 8 tokens and 20 output tokens arrive at 0 and 1 ns.

- step 1, 0 to 18: request 1 is prefilled.  Step 2, to 37: it decodes, request 2 is prefilled (first token 36 ns after
  it arrived).  Steps 3 to 13, 12 ns each, to 169: both decode.
- step 14 needs a sixth page for request 1 while both have five: request 2 gives way, with 19 computed tokens.
- steps 14 to 20, 11 ns each, to 246: request 1 decodes to its end.
- step 21, 30 ns, to 276: request 2 is prefilled again (19 positions computed before and one more).  Steps 22 to 28,
  11 ns each, to 353: it decodes to its end.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.__main__ import main

SCENARIO = """\
[scheduler]
policy = "fcfs"

[memory]
pages = 10
page_size = 4
host_pages = 0

[cost.options]
base_ns = 10
prefill_token_ns = 1
decode_request_ns = 1
kv_token_ps = 0

[[classes]]
name = "chat"
ttft_ms = 3e-5

[workload]
kind = "trace"
trace = "two.csv"
"""

TRACE = """\
arrived_at,num_prefill_tokens,num_decode_tokens
0.0,8,20
0.000000001,8,20
"""


def scenario(folder: Path) -> Path:
    """The scenario file, its trace beside it."""
    (folder / "two.csv").write_text(TRACE)
    file = folder / "hand.toml"
    file.write_text(SCENARIO)
    return file


def call(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command."""
    capsys.readouterr()
    status = main([str(each) for each in argv])
    told = capsys.readouterr()
    return status, told.out, told.err
