"""``CostModel.run_ns`` for a model that has no closed form: one loop over its ``step_ns``.

Such a model's ``run_ns`` is ``return run_by_steps(self.step_ns, shape, start_ns, steps, until_ns)``.
"""

from __future__ import annotations

from collections.abc import Callable

from stepwell.core.protocols import BatchShape


def run_by_steps(
    step_ns: Callable[[BatchShape], int], shape: BatchShape, start_ns: int, steps: int, until_ns: int
) -> list[int]:
    """End times (ns) of up to ``steps`` steps, the first shaped ``shape`` and starting at ``start_ns``, each later one
    reading ``decode_requests`` KV tokens more.  Stops after the first that ends at or past ``until_ns``.

    ``shape`` stays as it is; ``step_ns`` is given one that changes from step to step, and must not keep it.
    """
    step = BatchShape(
        shape.prefill_tokens,
        shape.decode_requests,
        shape.kv_tokens,
        shape.swap_pages,
        shape.prefill_requests,
        shape.copied_pages,
        shape.prefill_pairs,
    )
    more = shape.decode_requests
    now_ns = start_ns
    ends: list[int] = []
    append = ends.append
    for _ in range(steps):
        now_ns += step_ns(step)
        append(now_ns)
        if now_ns >= until_ns:
            break
        step.kv_tokens += more
    return ends
