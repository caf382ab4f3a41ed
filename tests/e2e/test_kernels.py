"""A model served by Triton's kernels, in their interpreter, in a worker process: under pressure, and replayed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `model`")
pytest.importorskip("triton", reason="needs Triton")

from stepwell.tests.backends.speaking import write_speaking_gguf
from stepwell.tests.e2e.serving import PATIENCE_S, Server, serving

from openai import AsyncOpenAI  # isort: skip

SMALL = {
    "model.dtype": "float32",
    "model.threads": 1,
    "memory.pages": 9,
    "memory.page_size": 4,
    "memory.host_pages": 16,
    "scheduler.token_budget": 32,
    "scheduler.running_limit": 4,
}
"""Too small for four at a time."""
INTERPRETED = {"environ": {"TRITON_INTERPRET": "1"}}


async def crowd(server: Server) -> list[str]:
    async def one(client: AsyncOpenAI, index: int) -> str:
        drawn: dict[str, Any] = {"temperature": 1.0, "seed": index} if index % 2 else {"temperature": 0.0}
        stream = await client.completions.create(
            model="tiny", prompt="ab12 " * (1 + index % 3), max_tokens=9, stream=True, **drawn
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async with AsyncOpenAI(base_url=server.url, api_key="none", timeout=PATIENCE_S, max_retries=0) as client:
        return await asyncio.gather(*(one(client, index) for index in range(5)))


def test_a_worker_serves_by_kernels_what_it_serves_without(tmp_path: Path) -> None:
    """The same text for everybody, though some gave way by swap; and its journal replays."""
    path = write_speaking_gguf(tmp_path / "tiny.gguf")
    settings = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    begun = ("--model", str(path), "--set", "model.name=tiny", "--policy", "swap", *settings)
    texts = []
    for kernels in ("auto", "triton"):
        journal = tmp_path / kernels
        chosen = ("--set", f"model.options.kernels={kernels}", "--journal", str(journal))
        with serving(*begun, *chosen, cost=False, **INTERPRETED) as server:
            assert ("kernels triton" in " ".join(server.greeting)) == (kernels == "triton"), server.greeting
            texts.append(asyncio.run(crowd(server)))
            assert server.metric("vllm:num_preemptions_total") > 0
            assert server.stop() == 0
        (file,) = journal.glob("*.jsonl")
        replayed = subprocess.run(
            [sys.executable, "-m", "stepwell", "replay", str(file)], capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 3
