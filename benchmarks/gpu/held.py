"""A backend held to its orders: every step must give a token to exactly those whom its launch lets sample."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core.instructions import Launch
from stepwell.core.protocols import Backend, BackendInfo, StepResult
from stepwell.core.sampling import GREEDY, SamplingParams
from stepwell.core.types import RequestId


class Held:
    """Hands everything on to ``backend``, and counts; requests must ignore end tokens, as the plan decides who ends."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.steps = self.rows = 0
        self.wrong: list[str] = []
        """What went otherwise than decided, in words."""
        self.answers: dict[RequestId, list[int]] = {}
        self._live: set[RequestId] = set()
        self._members: dict[RequestId, None] = {}
        self._last_step = 0

    @property
    def info(self) -> BackendInfo:
        return self._backend.info

    def admit(
        self,
        request: RequestId,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
        output: Sequence[int] = (),
    ) -> None:
        self._live.add(request)
        self.answers[request] = []
        self._backend.admit(request, prompt, max_tokens, sampling, output)

    def release(self, request: RequestId) -> None:
        self._live.discard(request)
        self._backend.release(request)

    def execute(self, batch: Launch) -> StepResult:
        for request in batch.left:
            self._members.pop(request, None)
        self._members.update(dict.fromkeys(batch.joined))
        decided = [*(self._members if batch.decode else ()), *(row[0] for row in batch.slices if row[3])]
        wanted = sorted(request for request in decided if request in self._live)
        result = self._backend.execute(batch)
        self.steps += 1
        self.rows += len(wanted)
        self._last_step = batch.step
        given = sorted(request for request, _ in result.tokens)
        if given != wanted:
            self.wrong.append(f"step {batch.step}: tokens for {given[:8]}, decided {wanted[:8]}")
        if result.ended:
            self.wrong.append(f"step {batch.step}: {result.ended[:8]} ended, undecided")
        for request, token in result.tokens:
            self.answers.setdefault(request, []).append(token)
        return result

    def empty(self) -> None:
        """Nobody is there any more: whoever is in the decode group leaves it, as the next launch would have said."""
        for request in sorted(self._live):
            self.release(request)
        self._backend.execute(Launch(self._last_step + 1, left=list(self._members)))
        self._members.clear()

    def close(self) -> None:
        self._backend.close()
