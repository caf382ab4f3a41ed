"""The three families of errors, and the few others that callers tell apart.

Every error raised on purpose belongs to one of them, so that a shell can decide what to do without reading text:
``UserError`` is the caller's to mend (HTTP 4xx), ``CapacityError`` is expected under load (429 or 503), and
``InvariantError`` is a bug in Stepwell (stop serving, keep the evidence).
"""

from __future__ import annotations


class StepwellError(Exception):
    """Base of the three families; never raised itself."""


class UserError(StepwellError):
    """Something the caller gave is wrong.  ``field`` names it, as a path such as ``scheduler.policy``."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.message = message
        self.field = field


class CapacityError(StepwellError):
    """There is no room, now or ever.  ``code`` is stable and machine-readable; ``retry_after_ns`` is 0 if unknown."""

    def __init__(self, message: str, *, code: str, retry_after_ns: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_ns = retry_after_ns


class InvariantError(StepwellError):
    """A law of ``INVARIANTS.md`` does not hold: a bug, never the caller's fault."""


class DeviceLostError(StepwellError):
    """The device is lost for this process, for good: whoever executes on it has to be started again."""


class PolicyError(StepwellError):
    """A policy broke a rule of the plan.  The simulator stops with it; the live engine falls back to FCFS."""

    def __init__(self, *, policy: str, step: int, rule: str, detail: str) -> None:
        super().__init__(f"policy {policy!r} broke the rule {rule!r} in the plan for step {step}: {detail}")
        self.policy = policy
        self.step = step
        self.rule = rule
        self.detail = detail


PLUGIN_RAISES = (Exception, SystemExit)
"""What somebody else's code may raise that must not end whoever called it: for ``except``."""


def describe(error: BaseException) -> str:
    """What an exception says and where it was raised, in a line that is the same on every machine."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = ""
    if at is not None:
        code = at.tb_frame.f_code
        where = (
            f" ({code.co_filename.replace(chr(92), '/').rpartition('/')[2]}, line {at.tb_lineno}, in {code.co_name})"
        )
    return f"{type(error).__name__}: {error}{where}"
