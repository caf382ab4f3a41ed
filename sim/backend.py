"""The scripted backend: executes steps in thought, with tokens, ends, failures and step times from a script.

It serves the live engine in tests, demonstrations and overload rehearsals, and needs no model: a request's answer is
its own prompt said again and again, as long as the script says.  Step times come from a cost model; the engine lets
them pass on its clock, real or virtual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from stepwell.core.instructions import Launch
from stepwell.core.protocols import BackendInfo, BatchShape, CostModel, StepResult
from stepwell.core.sampling import GREEDY, SamplingParams
from stepwell.core.types import FOREVER, RequestId, StepId
from stepwell.sim.cost.linear import Linear
from stepwell.sim.mirror import BatchMirror


class Fault(msgspec.Struct, frozen=True):
    """A step that produces nothing; ``blamed`` are requests at fault (see ``StepFailed``)."""

    blamed: tuple[RequestId, ...] = ()
    device_lost: bool = False
    reason: str = "injected fault"


FaultScript = Callable[[StepId], Fault | None]
"""Says which steps fail, from a seed or a list."""


def no_faults(step: StepId) -> Fault | None:
    """The script of a device that never fails."""
    return None


class EchoBackend:
    """See the module.  ``lengths`` gives a request's true output length; by default that of its prompt.

    ``text``: what all of them say instead of their prompts.  A request that ignores end tokens goes on until it is told
    to stop.
    """

    name = "echo"
    info = BackendInfo(model="echo")

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """None yet: a script is given in Python."""

    def __init__(
        self,
        options: Options | None = None,
        *,
        cost: CostModel | None = None,
        lengths: Mapping[RequestId, int] | None = None,
        faults: FaultScript = no_faults,
        text: Sequence[int] | None = None,
    ) -> None:
        self._cost = cost or Linear()
        self._text = text
        self._lengths = lengths
        self._faults = faults
        self._prompts: dict[RequestId, Sequence[int]] = {}
        self._before: dict[RequestId, int] = {}
        """Output tokens said before it came here (by another process that is no more)."""
        self._said: dict[RequestId, int] = {}
        """Output tokens said, counted from the positions that launches name: a wrong one gives a wrong answer."""
        self._endless: set[RequestId] = set()
        """Those whose end tokens do not end them."""
        self._members: dict[RequestId, None] = {}
        self._mirror = BatchMirror(self._length)

    def _length(self, request: RequestId) -> int:
        """0 for one that ended: a launch already on its way may still name it."""
        prompt = self._prompts.get(request, ())
        if not prompt:
            return 0
        if request in self._endless:
            return FOREVER
        return (len(prompt) if self._lengths is None else self._lengths[request]) - self._before[request]

    def admit(
        self,
        request: RequestId,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
        output: Sequence[int] = (),
    ) -> None:
        self._prompts[request] = prompt
        self._before[request] = len(output)
        if sampling.ignore_eos:
            self._endless.add(request)

    def execute(self, batch: Launch) -> StepResult:
        """One step; ``elapsed_ns`` is how long it is to take, and the engine waits for it."""
        fault = self._faults(batch.step)
        if fault is not None:
            return self._fail(batch.step, fault)
        ended = self._mirror.apply(batch)
        for id in batch.left:
            self._members.pop(id, None)
        for id in batch.joined:
            self._members[id] = None
        tokens: list[tuple[RequestId, int]] = []
        if batch.decode:
            tokens += [(id, self._say(id)) for id in self._members if id in self._prompts]
        for id, start, count, samples in batch.slices:
            if samples and id in self._prompts:
                self._said[id] = start + count - len(self._prompts[id])
                tokens.append((id, self._say(id)))
        elapsed_ns, copy_ns = self._mirror.times(self._cost)
        return StepResult(batch.step, ended, tokens, elapsed_ns=elapsed_ns, copy_ns=copy_ns)

    def _fail(self, step: StepId, fault: Fault) -> StepResult:
        """Nothing is on the device any more; it took the time of an empty step to find out."""
        self._mirror.reset()
        self._members.clear()
        return StepResult(
            step,
            elapsed_ns=self._cost.step_ns(BatchShape()),
            failed=fault.reason,
            blamed=list(fault.blamed),
            device_lost=fault.device_lost,
        )

    def _say(self, request: RequestId) -> int:
        said = self._said[request]
        text = self._prompts[request] if self._text is None else self._text
        self._said[request] = said + 1
        return text[said % len(text)]

    def release(self, request: RequestId) -> None:
        self._mirror.release(request)
        for each in (self._prompts, self._before, self._said):
            each.pop(request, None)
        self._endless.discard(request)

    def close(self) -> None:
        """Nothing is held."""
