"""The device of a real server fails so that its worker process has to go: streams go on to the letter, or end with the
reason; the port stays.  The error is raised where a driver would raise it, in the worker process, at a chosen step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stepwell.tests.e2e.serving import PATIENCE_S, Server, serving

from openai import APIError, OpenAI  # isort: skip

SITE = """
import os, pathlib, sys

if any("stepwell.core.worker" in word for word in sys.orig_argv):
    import importlib
    from stepwell.core.errors import DeviceLostError

    left, at = pathlib.Path(os.environ["FAULTS_LEFT"]), int(os.environ["FAULTS_AT"])
    module, name = os.environ["FAULTS_OF"].split(":")
    backend = getattr(importlib.import_module(module), name)
    execute, steps = backend.execute, [0]

    def failing(self, batch):
        steps[0] += 1
        faults = int(left.read_text())
        if steps[0] == at and faults:
            left.write_text(str(faults - 1))
            raise_fault(self)
        return execute(self, batch)

    def raise_fault(self):
        text = "CUDA error: an illegal memory access was encountered"
        if "torch" not in sys.modules:
            raise DeviceLostError(f"cuda:0: {text}")
        import torch
        from stepwell.backends.device.faults import reason_of

        reason_of(torch.AcceleratorError(text), self._model.device)

    backend.execute = failing
"""
"""What every interpreter runs first that finds it on its path."""
WHY = "lost its device: {}: CUDA error: an illegal memory access was encountered"


def faulty(folder: Path, of: str, *, at: int, faults: int) -> dict[str, str]:
    """An environment in which ``faults`` workers lose their device, each in its step number ``at``."""
    (folder / "sitecustomize.py").write_text(SITE)
    left = folder / "left"
    left.write_text(str(faults))
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "FAULTS_OF": of, "FAULTS_AT": str(at), "FAULTS_LEFT": str(left)}


def sdk(server: Server) -> OpenAI:
    return OpenAI(base_url=server.url, api_key="none", timeout=PATIENCE_S, max_retries=0)


def read(streams: list[Any]) -> list[str]:
    return ["".join(chunk.choices[0].text for chunk in stream if chunk.choices) for stream in streams]


def check_log(log: Path, device: str, times: int) -> None:
    text = log.read_text()
    gone = [line for line in text.splitlines() if "a worker process is gone" in line]
    assert len(gone) == times
    assert all(WHY.format(device) in line for line in gone), text
    assert text.count("a worker process took over") == times


@pytest.mark.parametrize("depth", [1, 2])
def test_a_lost_device_costs_a_pause_and_not_a_word(depth: int, tmp_path: Path) -> None:
    """Twice, in the middle of answers; who comes while there is no worker waits."""
    environ = faulty(tmp_path, "stepwell.sim.backend:EchoBackend", at=12, faults=2)
    log = tmp_path / "log.txt"
    words = [f"{index}: not a word is lost, and none is said twice; " * 3 for index in range(4)]
    how = ("--set", f"scheduler.depth={depth}", "--set", "memory.pages=40", "--policy", "swap")
    with serving(*how, step_us=2000, environ=environ, errors=log) as server, sdk(server) as client:
        asked: Any = {"model": "echo", "stream": True, "max_tokens": 1000}
        streams = [client.completions.create(prompt=each, **asked) for each in words]
        server.until(lambda: server.metric("stepwell:device_faults_total") > 0)
        assert json.loads(server.get("/health"))
        late = client.completions.create(prompt=words[0], **asked)
        assert read([*streams, late]) == [*words, words[0]]
        assert server.metric("stepwell:device_faults_total") == server.metric("stepwell:worker_restarts_total") == 2
        server.until(lambda: server.idle)
        assert server.stop() == 0
    check_log(log, "cuda:0", 2)


def test_a_request_that_loses_every_device_ends_with_the_reason_and_the_port_stays(tmp_path: Path) -> None:
    environ = faulty(tmp_path, "stepwell.sim.backend:EchoBackend", at=1, faults=2)
    log = tmp_path / "log.txt"
    with (
        serving("--set", "scheduler.max_failures=1", environ=environ, errors=log) as server,
        sdk(server) as client,
    ):
        asked: Any = {"model": "echo", "prompt": "hello", "stream": True}
        with pytest.raises(APIError, match=WHY.format("cuda:0")):
            list(client.completions.create(**asked))
        assert read([client.completions.create(**asked)]) == ["hello"]
        server.until(lambda: server.idle)
        assert server.stop() == 0
    check_log(log, "cuda:0", 2)


@pytest.mark.slow
def test_a_real_model_goes_on_to_the_letter(tmp_path: Path) -> None:
    """Greedy and seeded, at depth 2; then the same undisturbed."""
    pytest.importorskip("torch", reason="needs the extra `model`")
    from stepwell.tests.backends.speaking import write_speaking_gguf

    model = write_speaking_gguf(tmp_path / "model.gguf")
    environ = faulty(tmp_path, "stepwell.backends.torch_backend:TorchBackend", at=9, faults=2)
    log = tmp_path / "log.txt"
    pool = (
        "memory.pages=64",
        "memory.host_pages=16",
        "scheduler.token_budget=64",
        "scheduler.running_limit=8",
        "scheduler.depth=2",
    )
    exact = ("model.deterministic=true", "model.threads=1")
    settings = [word for each in (*pool, *exact) for word in ("--set", each)]
    with serving("--model", str(model), *settings, cost=False, environ=environ, errors=log) as server:
        with sdk(server) as client:
            asked: Any = {"model": "model.gguf", "stream": True, "max_tokens": 30, "extra_body": {"ignore_eos": True}}
            ways: Any = [{"temperature": 0}, {"temperature": 0.9, "seed": 5}, {"temperature": 1.2, "seed": 6}]

            def ask() -> list[str]:
                return read([client.completions.create(prompt=f"once {way}", **asked, **way) for way in ways])

            disturbed = ask()
            assert server.metric("stepwell:device_faults_total") == 2
            assert disturbed == ask()
            assert all(disturbed)
            assert server.metric("stepwell:device_faults_total") == 2
        assert server.stop() == 0
    check_log(log, "cpu", 2)
