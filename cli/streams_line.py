"""The figures of a crowd of streams, as one flat line and in words."""

from __future__ import annotations

from statistics import mean

from stepwell.cli.streams_probe import LAG, SLOW, STEPS, WAITING, quantile_s
from stepwell.cli.streams_run import Run, Stretch
from stepwell.core.build_kind import build_kind
from stepwell.sim.bench import Line
from stepwell.sim.stats import percentiles

FULL = 0.9
"""Of a core: whoever needs more is what limits."""
LINE = 0.01
"""Of the users: if more of them wait in line, the device is what they wait for."""
LATE_CLIENT_MS = 50.0
OVERTAKEN_NS = 500_000_000
"""So much later than somebody who came after is out of order."""


def line_of(run: Run) -> Line:
    """Times in s and ms as their names say, processor time in µs a token that came while measuring."""
    args, tally = run.args, run.tally
    ttft_p50, ttft_p99 = (_of_us(tally.ttfts_us, q, 1e6) for q in (0.5, 0.99))
    gap_p50, gap_p99, gap_most = (_of_us(tally.gaps_us, q, 1e3) for q in (0.5, 0.99, 1.0))
    lag_s = quantile_s(run.before, run.after, LAG, 0.99)
    streams = run.crowd.sockets + max(tally.most_open - run.crowd.sockets, round(tally.most_open * args.sse_share))
    grown = run.probe.most_bytes - run.probe.base_bytes
    server, worker, client = _cpu(run)
    line: Line = {
        "build": build_kind(),
        "scenario": args.scenario,
        "users": args.users,
        "ttft_p50_s": ttft_p50,
        "ttft_p99_s": ttft_p99,
        "lost_tokens": tally.lost,
        "doubled_tokens": tally.doubled,
        "loop_lag_p99_ms": _ms(lag_s),
        "loop_lag_most_ms": _ms(quantile_s(run.before, run.after, LAG, 1.0)),
        "tokens_per_s": round(tally.tokens / tally.seconds, 1),
        "bytes_per_stream": grown // max(streams, 1),
        "itl_p50_ms": gap_p50,
        "itl_p99_ms": gap_p99,
        "itl_most_ms": gap_most,
        "late_beats": tally.late_beats,
        "tokens_per_piece": round(tally.tokens / tally.pieces, 2) if tally.pieces else None,
        "write_gap_ms": round(1e3 * run.after.total("stepwell:write_gap_seconds"), 1),
        "asked": tally.asked,
        "answered": tally.answered,
        "refused": dict(tally.refused),
        "retry_after_s": round(mean(tally.retry_s), 1) if tally.retry_s else None,
        "overtaken": tally.overtaken(OVERTAKEN_NS),
        "streams_at_once": tally.most_open,
        "in_line": round(run.after.total(WAITING)),
        "seconds": round(tally.seconds, 1),
        "steps_per_s": round((run.after.total(STEPS) - run.before.total(STEPS)) / tally.seconds, 1),
        "slow_clients": int(run.after.total(SLOW, "slow_client")),
        "sse_share": args.sse_share,
        "server_us_per_token": _a_token(run, server),
        "worker_us_per_token": _a_token(run, worker),
        "client_us_per_token": _a_token(run, client),
        "server_cores": round(server / tally.seconds, 2),
        "worker_cores": round(worker / tally.seconds, 2),
        "client_cores": round(client / tally.seconds, 2),
        "other_cores": _others(run, server + worker + client),
        "client_lag_p99_ms": _of_us(run.lag_us, 0.99, 1e3),
        "server_mib": round(run.probe.most_bytes / (1 << 20), 1),
    }
    if run.first is not None:
        line |= _compared(run, run.first)
    line["limit"] = limit_of(line)
    line["wrong"] = tally.wrong
    return line


def _compared(run: Run, first: Stretch) -> Line:
    """With the stretch before: gaps between tokens and steps, and what each client that stalls takes."""
    before, after = _of_us(first.gaps_us, 0.99, 1e3), _of_us(run.tally.gaps_us, 0.99, 1e3)
    told: Line = {
        "first_itl_p99_ms": before,
        "itl_ratio": round(after / before, 3) if before and after else None,
        "first_step_ms": None if first.step_ms is None else round(first.step_ms, 2),
        "step_ms": None if run.step_ms is None else round(run.step_ms, 2),
        "step_ratio": round(run.step_ms / first.step_ms, 3) if first.step_ms and run.step_ms else None,
    }
    if run.args.scenario == "stalled":
        told |= {
            "stalled": run.args.stalled,
            "bytes_per_stalled": (run.probe.most_bytes - first.rss_bytes) // max(run.args.stalled, 1),
        }
    return told


def _cpu(run: Run) -> tuple[float, float, float]:
    """Seconds of a core: the server's process, those that it started, and this one."""
    before, after = run.before, run.after
    return after.cpu_s - before.cpu_s, after.worker_cpu_s - before.worker_cpu_s, run.client_cpu_s


def _others(run: Run, ours_s: float) -> float:
    """Cores that were busy with something else; what the kernel counts of a process is a tick early or late."""
    return round(max(run.after.busy_s - run.before.busy_s - ours_s, 0.0) / run.tally.seconds, 2)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 1)


def _a_token(run: Run, seconds: float) -> float | None:
    return round(seconds * 1e6 / run.tally.tokens, 1) if run.tally.tokens else None


def _of_us(values: object, q: float, by: float) -> float | None:
    (found,) = percentiles(values, (q,))  # type: ignore[arg-type]
    return None if found is None else round(found / by, 3)


def limit_of(line: Line) -> str:
    """Who has no time left, if anybody; what serves is named before what it serves."""
    lag, client, server = line["client_lag_p99_ms"], line["client_cores"], line["server_cores"]
    in_line, users = line["in_line"], line["users"]
    assert isinstance(client, float)
    assert isinstance(server, float)
    assert isinstance(in_line, int)
    assert isinstance(users, int)
    if client > FULL or (isinstance(lag, float) and lag > LATE_CLIENT_MS):
        return "the load generator: what it says of the server is too bad"
    waits = f"the device: {in_line:,} wait in line for it" if in_line > LINE * users else ""
    if server > FULL:
        return "the server's event loop: its core is full" + (f"; and {waits}" if waits else "")
    return waits


def machine_in_words(line: Line) -> str:
    """The yardstick."""
    return f"machine: {line['loop_ns_per_iteration']} ns an iteration of plain Python {line['python']}"


def in_words(line: Line) -> str:
    """For a person."""
    told = [
        f"{line['engine']}, {line['scenario']}, {line['users']:,} users:",
        f"  time to first token p50 {line['ttft_p50_s']} s, p99 {line['ttft_p99_s']} s",
        f"  between tokens p50 {line['itl_p50_ms']} ms, p99 {line['itl_p99_ms']} ms; {line['late_beats']:,} late beats,"
        f" {line['tokens_per_piece']} tokens a piece, gap"
        f" {line['write_gap_ms']} ms",
        f"  {line['tokens_per_s']:,} tokens/s; {line['lost_tokens']} lost, {line['doubled_tokens']} doubled;"
        f" {line['answered']:,} of {line['asked']:,} answered, refused {line['refused'] or 0}",
        f"  server: {line['server_us_per_token']} µs a token, {line['server_cores']} cores, loop lag p99"
        f" {line['loop_lag_p99_ms']} ms, {line['bytes_per_stream']:,} bytes a stream",
        f"  worker {line['worker_us_per_token']} µs a token; load generator {line['client_us_per_token']} µs a token,"
        f" {line['client_cores']} cores, its lag p99 {line['client_lag_p99_ms']} ms;"
        f" all else {line['other_cores']} cores",
    ]
    if "first_itl_p99_ms" in line:
        told.append(
            f"  before: between tokens p99 {line['first_itl_p99_ms']} ms, a step each {line['first_step_ms']} ms;"
            f" after: {line['itl_p99_ms']} ms and {line['step_ms']} ms ({line['itl_ratio']} and {line['step_ratio']})"
        )
    if "stalled" in line:
        told.append(
            f"  {line['stalled']:,} who do not read take {line['bytes_per_stalled']:,} bytes each;"
            f" {line['slow_clients']} were dropped"
        )
    if line["limit"]:
        told.append(f"  limit: {line['limit']}")
    if line["wrong"]:
        told.append(f"  WRONG: {line['wrong']}")
    return "\n".join(told)
