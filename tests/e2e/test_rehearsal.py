"""`stepwell serve --model costmodel`: a 70B model's traffic, served by the real server where no such device is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from openai import OpenAI

from stepwell.core.config import CostConfig
from stepwell.core.registry import make_cost_model
from stepwell.core.words import TEXT
from stepwell.sim.execute import execute
from stepwell.sim.rehearsal import CostModelBackend
from stepwell.tests.cli.hand import call
from stepwell.tests.e2e.serving import PATIENCE_S, serving

OPTIONS = {"model": "llama-3-70b", "device": "H100", "tensor_parallel": 4, "page_size": 16}


def test_steps_take_what_70b_on_four_h100_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every step of the live journal is as long as the cost model says of its batch; answers are as long as asked."""
    cost = '{model="roofline",options={model="llama-3-70b",device="H100",tensor_parallel=4}}'
    settings = ["--model", "costmodel", "--set", f"cost={cost}", "--set", "model.options.answer_tokens=12"]
    with serving(*settings, "--journal", str(tmp_path), cost=False, errors=tmp_path / "stderr") as server:
        assert "llama-3-70b as if on 4 × H100" in "\n".join(server.greeting)
        pages = next(line for line in server.greeting if line.startswith("KV cache"))
        assert "context 131072 tokens" in pages
        with OpenAI(base_url=server.url, api_key="none", timeout=PATIENCE_S) as client:
            (model,) = client.models.list().data
            assert model.id == "costmodel"
            said = client.chat.completions.create(
                model="costmodel", messages=[{"role": "user", "content": "How deep is the well?"}], max_tokens=500
            )
            assert said.choices[0].finish_reason == "stop"
            assert TEXT.replace("\n", "").startswith(said.choices[0].message.content or "?")
            streams = [
                client.completions.create(
                    model="costmodel",
                    prompt="word " * 300,
                    max_tokens=count,
                    stream=True,
                    extra_body={"ignore_eos": True},
                )
                for count in (3, 30, 17)
            ]
            for count, stream in zip((3, 30, 17), streams, strict=True):
                chunks = list(stream)
                assert chunks[-1].choices[0].finish_reason == "length"
                assert chunks[-1].usage is None or chunks[-1].usage.completion_tokens == count
        assert server.stop() == 0
    (journal,) = tmp_path.glob("*.jsonl")
    model_of_cost = make_cost_model(CostConfig(model="roofline", options=OPTIONS))
    times = execute(journal, CostModelBackend(cost=model_of_cost), model_of_cost, vocabulary=100)
    assert times.live
    assert len(times.steps) > 30
    assert all(each.recorded_ns == each.predicted_ns == each.measured_ns for each in times.steps)
    assert call(capsys, "replay", journal)[0] == 0, "decisions in rehearsed time replay as any others"
    status, out, _ = call(capsys, "replay", journal, "--backend", "costmodel", "--json")
    assert status == 0
    assert json.loads(out.splitlines()[-1])["ratio_to_recorded"] == 1.0


def test_a_pool_that_does_not_fit_is_refused_before_the_port_opens(tmp_path: Path) -> None:
    """The sum is told, and where to set what."""
    command = [sys.executable, "-m", "stepwell", "serve", "--port", "0", "--model", "costmodel"]
    command += ["--set", "cost.model=roofline", "--set", "memory.pages=1000000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert "memory.pages: 1000000 pages of 16 tokens do not fit" in done.stderr
