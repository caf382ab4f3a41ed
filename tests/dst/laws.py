"""What must hold of every life, whatever happened in it; a broken law raises ``BrokenLawError``."""

from __future__ import annotations

from stepwell.core.errors import CapacityError, InvariantError
from stepwell.core.events import Pause, ResetCache
from stepwell.core.instructions import Finished
from stepwell.core.placement_process import Process
from stepwell.sim.replay import replay
from stepwell.tests.dst.client import Client
from stepwell.tests.dst.life import Life
from stepwell.tests.dst.scenario import Lost, OutOfMemory, Raises
from stepwell.tests.stateful.rows import must


def check(life: Life) -> None:
    """All of them."""
    if life.watch.broken is not None:
        raise life.watch.broken
    health(life)
    for client in life.clients.values():
        stream(life, client)
    nothing_left(life)
    replays(life)


def health(life: Life) -> None:
    """The engine fails if, and only if, a law was broken or nobody knows what is on the device."""
    struck, failed = life.script.struck, life.engine.failed
    reasons = {
        "clock monotone": life.watch.went_back,
        "RuntimeError: the driver": any(isinstance(each, Raises) for each in struck),
        "the driver": any(isinstance(each, Raises) for each in struck),
        "the worker process": life.script.given_up,
    }
    if failed:
        must(
            any(holds and failed.startswith(reason) for reason, holds in reasons.items()),
            f"the engine failed for no reason: {failed}",
        )
    else:
        must(life.killed or not any(reasons.values()), f"the engine should have failed: {reasons}")
    bad = life.scenario.house.policy.startswith("stepwell.tests.core.bad_policies")
    must(bad or not life.watch.faults, f"a policy broke a rule: {life.watch.faults}")


def stream(life: Life, client: Client) -> None:
    """Each ends exactly once, for a reason, and said what the script says: nothing lost, nothing doubled."""
    visit, it = client.visit, client.stream
    closed = life.engine.failed or life.scenario.closes
    if it is None:
        must(bool(closed), f"visit {visit.key} was refused at the door: {client.refused}")
        return
    who = f"visit {visit.key} (request {it.request})"
    must(client.ends == 1, f"{who} was told {client.ends} times that it ended")
    must((it.finished is None) != (it.error is None), f"{who} ended with {it.finished} and {it.error}")
    must(client.got == visit.answer(len(client.got)), f"{who} heard {client.got}, of {visit.prompt} again and again")
    end = life.watch.ends.get(it.request)
    if it.error is not None:
        must(not isinstance(end, Finished) or bool(visit.raises_after), f"{who} has {it.error}, but {end}")
        broke = "the stream's reader" in str(it.error)
        must(broke == (bool(visit.raises_after) and len(client.got) >= visit.raises_after), f"{who}: {it.error}")
        if not broke and not life.engine.failed:
            shut = isinstance(it.error, CapacityError) and it.error.code == "not_serving"
            must(life.killed if shut else isinstance(it.error, CapacityError), f"{who}: {it.error}")
            must(shut or not client.got, f"{who} was refused after {len(client.got)} tokens")
        if life.engine.failed and not broke:
            must(isinstance(it.error, InvariantError) or not client.got, f"{who}: {it.error}")
        return
    assert it.finished is not None
    must(end is None or end == it.finished, f"{who} ended by {it.finished}, the scheduler said {end}")
    finished(life, client, it.finished, who)


def finished(life: Life, client: Client, end: Finished, who: str) -> None:
    visit = client.visit
    bound = min(visit.max_tokens, max(life.scenario.house.cap - len(visit.prompt), 0))
    length = bound + 1 if visit.endless else visit.length
    legal = {
        "stop": end.tokens == length or (client.stopped and end.tokens == visit.keeps),
        "length": end.tokens == bound,
        "cancelled": client.left,
        "expired": bool(visit.expires_ns) and end.tokens == 0,
        "error": any(isinstance(each, OutOfMemory | Lost) for each in life.script.struck),
        "rejected": life.scenario.house.rejects,
    }
    must(legal[end.reason], f"{who} ended by {end}, answer {length}, bound {bound}, heard {len(client.got)}")
    must(end.tokens <= min(length, bound), f"{who} ended with {end.tokens} tokens of {length}, at most {bound}")
    if client.stopped and end.reason == "stop":
        must(end.tokens <= len(client.got), f"{who} kept {end.tokens} tokens, heard {len(client.got)}")
    else:
        must(end.tokens == len(client.got), f"{who} heard {len(client.got)} tokens, {end.tokens} count")


def nothing_left(life: Life) -> None:
    """No task, no stream, no request, no page."""
    engine = life.engine
    must(life.tasks == 0, f"{life.tasks} tasks are left")
    must(not engine._streams, f"streams are left: {list(engine._streams)}")
    must(all(device.closed for device in life.devices), "a device was not closed")
    if engine.failed or life.killed:
        return
    state = engine.scheduler.state
    must(not state.requests and not state.inflight, f"left: {state.requests}, {state.inflight}")
    must(not engine._keys._chains, f"keys are left: {list(engine._keys._chains)}")
    inbox = [
        each for each in engine._inbox if not isinstance(each, Pause | ResetCache)
    ]  # an operator waits for nothing
    must(not inbox and not engine._steps, f"left: {inbox}, {len(engine._steps)} steps")
    place = engine.place
    must(not isinstance(place, Process) or not place._live, "the worker's place still holds requests")
    usage = state.allocator.usage()
    must((usage.free, usage.host_free) == (usage.total, usage.host_total), f"pages are left: {usage}")
    state.allocator.check()
    metrics = life.metrics
    must(metrics._pages == 0 and not metrics._inflight, f"the metrics see {metrics._pages} pages in use")
    for id, record in metrics.requests.items():
        end = life.watch.ends.get(id)
        tokens = end.tokens if isinstance(end, Finished) else 0
        must(record.tokens == tokens and bool(record.reason), f"request {id}: {record}, but {end}")


def replays(life: Life) -> None:
    """The journal replays without a difference: all of it, and from a later segment on."""
    if life.watch.went_back:
        return  # its last turn is the one that must be refused
    for number in {0, len(life.journal) // 2}:
        report = replay(life.journal[number])
        must(report.difference is None, f"the journal replays differently: {report.difference}")
        must(not report.gaps and not report.torn_bytes, f"the journal has holes: {report}")
