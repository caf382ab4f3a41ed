"""Closed-loop users: each sends a request, waits for its end, thinks, and sends the next.

There are never more requests in the house than users, and a slow server is asked less often: what load generators with
a fixed concurrency do, and what an office full of people does.
"""

from __future__ import annotations

import msgspec
import numpy as np

from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_S
from stepwell.sim.workload import draws
from stepwell.sim.workload.mixes import (
    LONGEST_DELAY_S,
    MOST_REQUESTS,
    Delay,
    Lengths,
    TenantMix,
    between,
    check_delay,
    check_lengths,
    check_mixes,
    check_reach,
    check_seed,
    choose,
    counts,
    delays_ns,
)
from stepwell.sim.workload.request import TraceRequest, Workload

_CLASS, _TENANT, _PROMPT, _OUTPUT, _THINK, _START = 10, 20, 30, 40, 50, 60


class UserClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A class of users and its share of them: what they ask, what they are answered, how long they think before they
    ask again."""

    prompt: Lengths
    output: Lengths
    think: Delay
    name: str = "chat"
    share: float = 1.0


class Users(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``users`` who send ``requests`` each.  They begin at times drawn evenly from ``start_s`` seconds; class and
    tenant are a user's, drawn independently.  A user is a program, named ``user-7``."""

    classes: tuple[UserClass, ...]
    users: int = 32
    requests: int = 50
    start_s: float = 10.0
    tenants: tuple[TenantMix, ...] = (TenantMix(),)
    seed: int = 0
    name: str = "users"


def generate_users(options: Users) -> Workload:
    """The workload that ``options`` describe.  Raises ``UserError`` if they describe none."""
    check_users(options)
    users, seed, classes = options.users, options.seed, options.classes
    klass = choose(seed, _CLASS, users, classes)
    tenant = choose(seed, _TENANT, users, options.tenants)
    starts = draws.uniforms(seed, _START, users) * (options.start_s * NS_PER_S)
    asked_by = np.tile(klass, options.requests)  # request j of user i is element j * users + i
    prompt = counts(seed, _PROMPT, asked_by, [each.prompt for each in classes]).tolist()
    output = counts(seed, _OUTPUT, asked_by, [each.output for each in classes]).tolist()
    think = delays_ns(seed, _THINK, asked_by, [each.think for each in classes]).tolist()
    requests: list[TraceRequest] = []
    for user, (k, t, start) in enumerate(zip(klass.tolist(), tenant.tolist(), starts.tolist(), strict=True)):
        arrival_ns, program = round(start), f"user-{user}"
        after: tuple[int, ...] = ()
        think_ns = 0
        for at in range(user, len(prompt), users):
            if after:
                think_ns = think[at]
                arrival_ns += think_ns
            made = TraceRequest(arrival_ns, prompt[at], output[at], classes[k].name, options.tenants[t].name)
            made.program, made.after, made.think_ns = program, after, think_ns
            requests.append(made)
            after = (len(requests),)
    check_reach(requests, "classes.think")
    note = f"{users} users in a closed loop, {options.requests} requests each, generated with seed {seed}"
    return Workload(options.name, requests, notes=[note])


def check_users(options: Users) -> None:
    """Raises ``UserError`` for options of which no workload is made."""
    between(options.users, 1, MOST_REQUESTS, "users")
    between(options.requests, 1, MOST_REQUESTS, "requests")
    if options.users * options.requests > MOST_REQUESTS:
        raise UserError(f"makes {options.users * options.requests} in all, more than {MOST_REQUESTS}", field="requests")
    between(options.start_s, 0.0, LONGEST_DELAY_S, "start_s")
    check_seed(options.seed)
    check_mixes(options.classes, options.tenants)
    for index, each in enumerate(options.classes):
        check_lengths(each.prompt, f"classes[{index}].prompt")
        check_lengths(each.output, f"classes[{index}].output")
        check_delay(each.think, f"classes[{index}].think")
