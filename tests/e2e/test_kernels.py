"""A model served by Triton's kernels, in their interpreter, in a worker process: under pressure, and replayed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `model`")
pytest.importorskip("triton", reason="needs the extra `cuda`")

from stepwell.core.sampling import SamplingParams
from stepwell.tests.backends.driving import make, serve
from stepwell.tests.backends.speaking import write_speaking_gguf
from stepwell.tests.e2e.serving import PATIENCE_S, Server, serving

from openai import AsyncOpenAI  # isort: skip

SMALL = {
    "model.name": "tiny",
    "model.dtype": "float32",
    "model.threads": 1,
    "model.options.kernels": "triton",
    "memory.pages": 7,
    "memory.page_size": 4,
    "memory.host_pages": 16,
    "scheduler.token_budget": 12,
    "scheduler.running_limit": 3,
}
"""Too small for three at a time."""
REQUESTS = [([40 + index * 7 + place for place in range(3 + 4 * index)], index % 2 * 1.0, index) for index in (2, 1, 0)]
"""Prompt, temperature, seed."""
ANSWER = 10
"""So many that no two of them have room to the end, whoever comes first."""


async def crowd(server: Server) -> list[list[int]]:
    async def one(client: AsyncOpenAI, prompt: list[int], temperature: float, seed: int) -> list[int]:
        done: Any = await client.completions.create(
            model="tiny",
            prompt=prompt,
            max_tokens=ANSWER,
            temperature=temperature,
            seed=seed,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )
        return list(done.choices[0].token_ids)

    async with AsyncOpenAI(base_url=server.url, api_key="none", timeout=PATIENCE_S, max_retries=0) as client:
        return await asyncio.gather(*(one(client, *each) for each in REQUESTS))


def test_a_worker_serves_by_kernels_what_the_host_says(tmp_path: Path) -> None:
    """The same tokens for everybody, though some gave way; and the journal replays."""
    path, journal = write_speaking_gguf(tmp_path / "tiny.gguf"), tmp_path / "journal"
    settings = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    begun = ("--model", str(path), "--policy", "swap", "--journal", str(journal), *settings)
    with serving(*begun, cost=False, environ={"TRITON_INTERPRET": "1"}) as server:
        assert "kernels triton" in " ".join(server.greeting)
        answers = asyncio.run(crowd(server))
        assert server.metric("vllm:num_preemptions_total") > 0
        assert server.stop() == 0
    drawn = [SamplingParams(temperature=heat, seed=seed, ignore_eos=True) for _, heat, seed in REQUESTS]
    host = make(path, deterministic=False)
    asked = [(prompt, ANSWER, sampling) for (prompt, _, _), sampling in zip(REQUESTS, drawn, strict=True)]
    assert answers == serve(host, asked).answers
    (file,) = journal.glob("*.jsonl")
    replay = [sys.executable, "-m", "stepwell", "replay", str(file)]
    replayed = subprocess.run(replay, capture_output=True, text=True, timeout=PATIENCE_S)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
