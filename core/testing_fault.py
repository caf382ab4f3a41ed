"""Finds what breaks a policy and keeps the workload that shows it, so that a person can play it again."""

from __future__ import annotations

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.testing_play import ConformanceError, Scenario
from stepwell.core.testing_policy import MakePolicy, check_policy, check_scenario


class Fault(msgspec.Struct, frozen=True):
    """``scenario`` is the smallest workload found that shows ``what``; None if it takes an endless stream."""

    what: str
    scenario: Scenario | None = None

    def as_json(self) -> str:
        """The workload, as ``replay_fault`` reads it: what is not a default."""
        return msgspec.json.encode(self.scenario).decode()

    def in_words(self) -> str:
        """The machine, and a line for each request."""
        it = self.scenario
        if it is None:
            return ""
        lines = [
            f"  {it.pages} pages of {it.page_size} tokens ({it.allocator}), {it.host_pages} in the host tier;"
            f" {it.limits().token_budget} tokens and {it.running_limit} requests a step, depth {it.depth},"
            f" {it.tick_ns / 1e6:g} ms a step"
        ]
        if it.fails:
            lines.append(f"  steps that fail: {', '.join(map(str, it.fails))}")
        if it.rebuilds:
            lines.append(f"  the policy is rebuilt at ticks {', '.join(map(str, sorted(it.rebuilds)))}")
        for id, each in enumerate(it.arrivals, 1):
            leaves = f", leaves {each.patience} ticks later" if each.patience else ""
            who = f"{each.klass}, {each.tenant}"
            who += f", program {each.program}" if each.program else ""
            who += f", priority {each.priority}" if each.priority else ""
            lines.append(
                f"  request {id} ({who}) comes at tick {each.tick}: prompt of {each.prompt},"
                f" {min(each.output, each.max_tokens)} output tokens of at most {each.max_tokens}{leaves}"
            )
        return "\n".join(lines)


def find_fault(make_policy: MakePolicy, examples: int = 200) -> Fault | None:
    """Run the whole suite; what it finds is shrunk.  None if the policy conforms."""
    failed: list[Fault] = []

    def noted(scenario: Scenario, make: MakePolicy) -> None:
        try:
            check_scenario(scenario, make)
        except ConformanceError as error:
            failed.append(Fault(str(error), scenario))
            raise

    try:
        check_policy(make_policy, examples=examples, check=noted)
    except ConformanceError as error:
        return next((each for each in reversed(failed) if each.what == str(error)), Fault(str(error)))
    return None


def replay_fault(make_policy: MakePolicy, workload: str) -> Fault | None:
    """Play one workload, as ``Fault.as_json`` wrote it."""
    try:
        scenario = msgspec.json.decode(workload, type=Scenario)
    except msgspec.DecodeError as error:
        raise UserError(f"is no workload of an earlier check: {error}", field="--replay") from None
    try:
        check_scenario(scenario, make_policy)
    except ConformanceError as error:
        return Fault(str(error), scenario)
    return None
