"""Another policy while clients are being answered, and one that fails them: nobody notices, and everything is told."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from stepwell.tests.architecture_rules import ROOT
from stepwell.tests.e2e.serving import PATIENCE_S, Server, serving
from stepwell.tests.helpers.small_model import needs_small_model

from openai import AsyncOpenAI  # isort: skip

POLICIES = ("chat-batch", "mlfq", "srpt", "fcfs", "vtc", "edf", "sarathi", "past-future", "static", "swap")
CROWD = 24
SMALL = ("--set", "memory.pages=40", "--set", "memory.host_pages=200", "--set", "scheduler.running_limit=8")
"""Too small for eight, so that at any time somebody is in line, prefilling, decoding, or on the host."""

PLACES = ("waiting", "running", "swapped")


def put(server: Server, **body: Any) -> dict[str, Any]:
    url = f"http://127.0.0.1:{server.port}/admin/scheduler"
    asked = urllib.request.Request(url, json.dumps(body).encode(), method="PUT")
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
        told: dict[str, Any] = json.loads(answer.read())
        return told


def prompt(index: int) -> str:
    return f"{index:04}" * (8 + 11 * index % 24)


async def crowd(server: Server) -> list[str]:
    """Streams of chats and of batch requests, each to its end."""

    async def one(client: AsyncOpenAI, index: int) -> str:
        stream = await client.chat.completions.create(
            model="echo",
            messages=[{"role": "user", "content": prompt(index)}],
            stream=True,
            service_tier="flex" if index % 3 == 0 else "auto",
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async with AsyncOpenAI(base_url=server.url, api_key="none", timeout=PATIENCE_S, max_retries=0) as client:
        return await asyncio.gather(*(one(client, index) for index in range(CROWD)))


def stepwell(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "stepwell", *arguments], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join(done.stdout.split())


def all_well(server: Server, answers: list[str]) -> None:
    """Everybody has the whole answer, nobody was lost, and no page."""
    assert answers == [prompt(index % CROWD) for index in range(len(answers))]
    server.until(lambda: server.idle)
    success = "vllm:request_success_total"
    assert server.metric(success, finished_reason="stop") == server.metric(success) == len(answers)


def test_policies_change_under_running_requests_and_no_token_does(tmp_path: Path) -> None:
    """A shadow is there all the time, which the journal does not know of.

    One crowd after another, until some change found somebody in every place.
    """
    shadow = ("--set", "scheduler.shadow=srpt")
    with serving("--journal", str(tmp_path), "--policy", "swap", *shadow, *SMALL, step_us=2000) as server:
        seen: list[dict[str, int]] = []

        def missed() -> list[str]:
            return [place for place in PLACES if not any(queue[place] for queue in seen)]

        async def change(done: asyncio.Event) -> None:
            while not done.is_set():
                for name in POLICIES:
                    told = await asyncio.to_thread(put, server, policy=name, why=f"now {name}")
                    assert told["new"]["policy"] == name
                    seen.append(told["scheduler"]["queue"])

        async def both() -> list[str]:
            done = asyncio.Event()
            changing = asyncio.create_task(change(done))
            answers = await crowd(server)
            while missed() and len(answers) < 10 * CROWD:
                answers += await crowd(server)
            done.set()
            await changing
            return answers

        all_well(server, asyncio.run(both()))
        assert not missed(), "nobody was there at any change"
        assert server.metric("stepwell:policy_swaps_total", by="operator") == len(seen)
        assert server.metric("stepwell:policy_faults_total") == 0
        assert json.loads(server.get("/admin/scheduler"))["shadow"]["off"] == ""
        assert server.metric("stepwell:shadow_steps_total", said="different") > 0
        assert server.stop() == 0
    (journal,) = tmp_path.glob("*.jsonl")
    assert "every decision as recorded" in stepwell("replay", str(journal))
    assert "every" not in stepwell("replay", str(journal), "--backend", "echo"), "executed, not decided"
    stories = [stepwell("explain", str(journal), "--request", str(id)) for id in (CROWD // 2, CROWD)]
    assert any("policy mlfq takes over (now mlfq)" in story for story in stories)


@pytest.mark.slow
def test_a_real_model_says_the_same_under_changing_policies() -> None:
    """Greedy and deterministic, in a pool where some must give way; policies change between the tokens, or do not."""
    needs_small_model()
    pool = ("--set", "memory.pages=10", "--set", "memory.host_pages=64", "--set", "scheduler.running_limit=4")

    async def talk(server: Server, changing: bool) -> list[str]:
        async def one(client: AsyncOpenAI, index: int) -> str:
            messages: Any = [{"role": "user", "content": f"Count up from {index}, and say why."}]
            stream = await client.chat.completions.create(
                model="smollm2", messages=messages, max_tokens=20, temperature=0, stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        async def change() -> None:
            while True:
                for name in POLICIES:
                    await asyncio.to_thread(put, server, policy=name)
                    await asyncio.sleep(0.1)

        async with AsyncOpenAI(base_url=server.url, api_key="none", timeout=PATIENCE_S, max_retries=0) as client:
            task = asyncio.create_task(change()) if changing else None
            answers = await asyncio.gather(*(one(client, index) for index in range(4)))
            if task is not None:
                task.cancel()
            return answers

    with serving("--model", "smollm2", "--deterministic", *pool) as server:
        alone = asyncio.run(talk(server, False))
        assert all(len(answer) > 20 for answer in alone)
        before = server.metric("vllm:num_preemptions_total")
        assert asyncio.run(talk(server, True)) == alone
        assert server.metric("stepwell:policy_swaps_total", by="operator") > len(POLICIES)
        assert server.metric("vllm:num_preemptions_total") > before


FAULTS = {
    "raises": "plan raised",
    "observe": "observe raised",
    "unknown": "known request",
    "empty": "idle without wake",
    "past": "wake in the future",
}
"""What the policy does, and the rule that is named."""


@pytest.mark.parametrize("how", FAULTS)
def test_a_policy_that_fails_costs_nobody_an_answer(how: str, tmp_path: Path) -> None:
    policy = f"{ROOT / 'tests' / 'core' / 'bad_policies.py'}:Breaks"
    broken = ("--policy", policy, "--set", f'scheduler.options={{at=40,how="{how}"}}')
    log = tmp_path / "log.txt"
    with serving("--journal", str(tmp_path), *broken, *SMALL, step_us=1000, errors=log) as server:
        all_well(server, asyncio.run(crowd(server)))
        rule = FAULTS[how]
        told = json.loads(server.get("/admin/scheduler"))
        assert (told["policy"], told["last_fault"]["rule"], told["stands_in"]) == ("fcfs", rule, True)
        for path in ("/ready", "/health"):
            assert f"broke the rule '{rule}'" in server.get(path)
        assert server.metric("stepwell:policy_faults_total", policy="bad_policies.py:Breaks", rule=rule) == 1
        assert server.metric("stepwell:policy_swaps_total", by="fault") == 1
        assert put(server, policy="swap")["old"]["policy"] == "fcfs"
        with pytest.raises(urllib.error.HTTPError) as refused:
            put(server, policy=policy.replace("Breaks", "Waits"))
        with refused.value as answer:
            assert answer.code == 400
        assert put(server, policy=policy, options={"at": 10**9})["new"]["policy"] == policy
        assert server.stop() == 0
    assert "policy fault, falling back" in log.read_text()
    (journal,) = tmp_path.glob("*.jsonl")
    assert "every decision as recorded" in stepwell("replay", str(journal))
    assert f"broke the rule '{rule}'" in stepwell("explain", str(journal), "--request", str(CROWD))
