"""A random walk through the scheduler's life, from one seed."""

from __future__ import annotations

import random

from stepwell.core.events import Event, Timer
from stepwell.tests.stateful.world import ALLOCATORS, POLICIES, Setup, World


def setup_of(seed: int) -> Setup:
    """Policies, allocators and depths take turns, so that any run of seeds covers them; the sizes are drawn."""
    draw = random.Random(seed)
    rest, policy = divmod(seed, len(POLICIES))
    rest, allocator = divmod(rest, len(ALLOCATORS))
    return Setup(
        policy=POLICIES[policy],
        allocator=ALLOCATORS[allocator],
        depth=1 + rest % 3,
        pages=draw.randint(2, 12),
        page_size=draw.randint(1, 4),
        host_pages=draw.choice((0, 2, 4, 16)),
        token_budget=draw.randint(2, 16),
        running_limit=draw.randint(1, 6),
        max_preemptions=draw.randint(1, 4),
        max_failures=draw.choice((0, 1, 3)),
        max_waiting=draw.choice((0, 4, 20)),
        rejects=draw.random() < 0.3,
        honour_repeats=draw.random() < 0.8,
        forks=draw.choice((0.0, 0.3, 0.7)),
        seed=draw.randrange(1 << 30),
    )


def walk(seed: int, turns: int) -> World:
    """Take ``turns`` random turns and drain; the same every time."""
    draw = random.Random(-seed - 1)
    world = World(setup_of(seed))
    swaps = draw.random() < 0.3
    failures = draw.choice((0.0, 0.0, 0.03))
    arrivals = draw.choice((0.1, 0.3, 0.6))
    for _ in range(turns):
        if draw.random() < 0.1 and world.run(draw.randint(1, 20)):
            continue
        events: list[Event] = []
        if world.device.flights and draw.random() < 0.7:
            if draw.random() < failures:
                events.append(world.failed(draw.randint(-3, 20), device_lost=draw.random() < 0.3))
            else:
                events.append(world.done(draw.getrandbits(8) if draw.random() < 0.1 else 0))
        if draw.random() < arrivals:
            events.append(arrival(world, draw))
        if draw.random() < 0.05:
            events.append(world.cancel(draw.randrange(1 << 20)))
        if draw.random() < 0.03 and (stop := world.stop(draw.randrange(1 << 20), draw.randrange(1 << 20))):
            events.append(stop)
        if draw.random() < 0.05:
            events.append(Timer())
        if draw.random() < 0.02:
            events.append(world.pin(draw.randrange(24), draw.randint(1, 4)))
        if swaps and draw.random() < 0.05:
            events.append(world.use_policy(draw.choice(POLICIES)))
        world.send(*events, after_ns=draw.choice((0, 1, 10, 300)))
    world.drain()
    return world


def arrival(world: World, draw: random.Random) -> Event:
    if draw.random() < world.setup.forks:
        return world.forked(draw.randrange(32), draw.randint(1, 8), "chat", draw.choice((0, 0, 0, 5, 100)))
    cap = world.setup.pages * world.setup.page_size
    return world.submitted(
        draw.randint(1, draw.choice((3, cap, cap + 1))),
        draw.randint(1, draw.choice((2, 8, 2 * cap))),
        draw.choice(("chat", "batch", "chat", "batch", "nobody") if draw.random() < 0.1 else ("chat", "batch")),
        draw.choice((0, 0, 0, 5, 100)),
    )
