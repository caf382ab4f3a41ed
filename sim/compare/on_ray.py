"""Tasks on a Ray cluster.  Needs ray, from the extra ``ray``, and Stepwell installed on every node.

Files that a scenario names (a trace, a policy's file) must be found under the same name on every node.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Sequence

import msgspec

from stepwell.core.errors import UserError
from stepwell.sim.compare.runners import Runner
from stepwell.sim.compare.tasks import Failed, perform

HOW_TO_GET_IT = "a Ray cluster needs ray: pip install 'stepwell[ray]'"

AHEAD = 4
"""Tasks given to the cluster beyond twice the cores that it has, so that none of these waits for us."""


def on_ray(address: str = "auto") -> Runner:
    """Where ``address`` says (``auto``: the cluster that this machine belongs to, or else a new one of its own)."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(HOW_TO_GET_IT, field="on")

    def run(tasks: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
        import ray  # lazy: an extra

        ours = not ray.is_initialized()
        if ours:
            _connect(address)
        try:
            yield from _spread(tasks)
        finally:
            if ours:
                ray.shutdown()

    return run


def _connect(address: str) -> None:
    import ray  # lazy: an extra

    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        if address != "auto":
            raise UserError(f"no Ray cluster answers at {address!r}: {error}", field="on") from None
        ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)


def _spread(tasks: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    import ray  # lazy: an extra

    remote = ray.remote(perform)
    resources: dict[str, float] = ray.cluster_resources()
    most = AHEAD + 2 * int(resources.get("CPU", 1))
    waiting = iter(enumerate(tasks))
    running: dict[object, int] = {}
    left = len(tasks)
    try:
        while left:
            while len(running) < most and (following := next(waiting, None)) is not None:
                running[remote.remote(following[1])] = following[0]
            (done,), _ = ray.wait(list(running))
            index = running.pop(done)
            left -= 1
            try:
                yield index, ray.get(done)
            except ray.exceptions.RayError as error:
                told = " ".join(str(error).split())[:500]
                yield index, msgspec.json.encode(Failed(f"{type(error).__name__}: {told}"))
    finally:
        for each in running:
            ray.cancel(each, force=True)
