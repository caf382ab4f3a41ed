"""Each client: its package, its command, and where it writes what it got."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

Totals = tuple[int, int] | None
"""Requests that were answered, and the tokens of their answers; None: it wrote nothing."""


class Load(msgspec.Struct, frozen=True):
    """What is put into a command."""

    url: str
    model: str
    tokenizer: str
    out: str
    requests: int
    prompts: str
    """A file with a prompt a line."""

    @property
    def words(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self)


class Client(msgspec.Struct, frozen=True):
    """``command``: with ``{url}`` and the other fields of ``Load`` in it."""

    package: str
    command: tuple[str, ...]
    totals: Callable[[Path], Totals]
    environment: Mapping[str, str] = {}


def _read(folder: Path, pattern: str) -> Any:
    found = sorted(folder.rglob(pattern))
    return json.loads(found[-1].read_text()) if found else None


def _guidellm(folder: Path) -> Totals:
    told = _read(folder, "*.json")
    if told is None:
        return None
    metrics = [each["metrics"] for each in told["benchmarks"]]
    requests = sum(each["request_totals"]["successful"] for each in metrics)
    return requests, round(sum(each["output_token_count"]["successful"]["total_sum"] for each in metrics))


def _aiperf(folder: Path) -> Totals:
    told = _read(folder, "profile_export_aiperf.json")
    if told is None:
        return None
    requests = round(told["request_count"]["avg"])
    return requests, round(told["total_output_tokens"]["avg"])


def _genai_bench(folder: Path) -> Totals:
    told = _read(folder, "*concurrency*.json")
    if told is None:
        return None
    metrics = told["aggregated_metrics"]
    requests = metrics["num_completed_requests"]
    return requests, round(sum(each["num_output_tokens"] for each in told["individual_request_metrics"]))


CLIENTS: Mapping[str, Client] = {
    "guidellm": Client(
        "guidellm==0.8.1",
        (
            *("guidellm", "run", "--backend", "kind=openai_http,target={url},model={model}"),
            *("--profile", "kind=concurrent,streams=8", "--constraint", "kind=max_requests,count={requests}"),
            *("--tokenizer", "kind=huggingface_auto,model={tokenizer}"),
            *("--data", "kind=synthetic_text,prompt_tokens=200,output_tokens=50"),
            *("--output", "kind=json,path={out}/guidellm.json", "--output", "kind=console", "--disable-progress"),
        ),
        _guidellm,
        {"HF_HUB_OFFLINE": "1"},
    ),
    "aiperf": Client(
        "aiperf==0.13.0",
        (
            *("aiperf", "profile", "--url", "{url}", "--model", "{model}", "--tokenizer", "{tokenizer}"),
            *("--endpoint-type", "chat", "--streaming", "--concurrency", "8", "--request-count", "{requests}"),
            *(
                "--synthetic-input-tokens-mean",
                "200",
                "--output-tokens-mean",
                "50",
                "--extra-inputs",
                "ignore_eos:true",
            ),
            *("--use-server-token-count", "--ui", "none", "--artifact-dir", "{out}"),
        ),
        _aiperf,
    ),
    "genai-bench": Client(
        "genai-bench==0.0.5",
        (
            *("genai-bench", "benchmark", "--api-backend", "vllm", "--api-base", "{url}", "--api-key", "none"),
            *("--api-model-name", "{model}", "--model-tokenizer", "{tokenizer}", "--task", "text-to-text"),
            *("--traffic-scenario", "D(200,50)", "--num-concurrency", "8", "--max-requests-per-run", "{requests}"),
            *("--max-time-per-run", "5", "--experiment-base-dir", "{out}", "--dataset-path", "{prompts}"),
        ),
        _genai_bench,
        {"HF_HUB_OFFLINE": "1"},
    ),
}
