"""Events, instructions and plans by names that compiled code reads without looking them up.

A name that a compiled module imports from one that is not is looked up in a dictionary each time; a ``Final`` of a
compiled module is not.
"""

from __future__ import annotations

from typing import Final

import msgspec

from stepwell.core.events import RunDone, StepDone, StepFailed, Submitted
from stepwell.core.execution import BatchShape
from stepwell.core.instructions import Admitted, Finished, Launch, Preempted, Rejected, Run
from stepwell.core.plan import StepPlan

fields: Final = msgspec.structs.astuple
"""All fields of a struct at once, in their order: compiled code looks up each attribute of a struct by name."""

STEP_DONE: Final = StepDone
RUN_DONE: Final = RunDone
STEP_FAILED: Final = StepFailed
SUBMITTED: Final = Submitted

ADMITTED: Final = Admitted
FINISHED: Final = Finished
LAUNCH: Final = Launch
PREEMPTED: Final = Preempted
REJECTED: Final = Rejected
RUN: Final = Run

PLAN: Final = StepPlan
SHAPE: Final = BatchShape
