"""Fair shares among tenants: whoever has been given least, by weight, is next.

Source: Sheng et al., "Fairness in Serving Large Language Models", OSDI'24 (Virtual Token Counter).  A tenant's counter
grows by its prompts as they are admitted and by its output tokens as they come; one that was idle is lifted to the
least of those that wait, so that nobody saves up credit.  Between tenants that both have requests waiting, service
differs by at most 2 max(input price × longest prompt, output price × tokens of a batch), whatever they send.  With a
predictor (section 4.4 there) an answer counts as it is guessed from its admission on, so the differences get smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Predictor, Promises, RequestView, SchedulerView
from stepwell.core.types import FINISHED
from stepwell.policies.tenant_line import TenantLine
from stepwell.policies.toolkit import pack
from stepwell.policies.victims import PreemptChoice
from stepwell.policies.work import Guesses

Price = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class Vtc:
    """Fair to tenants by tokens served; the latest arrival gives way when pages run out."""

    name = "vtc"
    promises = Promises(work_conserving=True, bounded_wait=True)
    parts: ClassVar[Mapping[str, str]] = {"predictor": "predictors"}

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """What a token counts, and how a request gives way; ``[[tenants]]`` have the weights."""

        prompt_price: Price = 1
        """What a prompt token counts."""
        output_price: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 2
        """What an output token counts."""
        predictor: str = "none"
        """Guesses output lengths, which count from admission on; ``none``: tokens count as they come."""
        predictor_options: Mapping[str, object] = {}
        preempt: PreemptChoice = "recompute"
        """How a request gives way when pages run out."""

    def __init__(self, options: Options, predictor: Predictor) -> None:
        self.options = options
        self.predictor = predictor
        self.guesses = Guesses(predictor)
        self.line = TenantLine(self.service)

    def service(self, request: RequestView) -> int:
        """What the request has been given: its prompt once admitted, and its output, as guessed while it lives."""
        output = request.generated
        if request.state is not FINISHED:
            output = max(output, self.guesses.output(request))
        return self.options.prompt_price * request.prompt_tokens + self.options.output_price * output

    def observe(self, event: PolicyEvent) -> None:
        self.guesses.observe(event)
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        plan = pack(view, self.line, mode=self.options.preempt)
        if plan.repeat and plan.blocked is not None:
            repeat = min(plan.repeat, self.line.steps_in_order(self.options.output_price))
            return msgspec.structs.replace(plan, repeat=repeat)
        return plan

    def dump(self) -> object:
        return {**self.line.dump(), "guesses": self.guesses.dump()}

    def load(self, data: Any) -> None:
        self.guesses.load(data["guesses"])
        self.line.load(data)
