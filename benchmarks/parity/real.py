"""Drives vLLM's own scheduler; runs in an environment that has vLLM and needs nothing of Stepwell.

    python real.py FOLDER EPISODES DECISIONS

``FOLDER`` is a place for a model's ``config.json``: no model is loaded, but vLLM's configuration begins with one.  A
line of ``EPISODES`` is a machine and its requests (``episodes.Episode``), a line of ``DECISIONS`` the list of the
steps, each ``[tokens, admitted, preempted, ended]``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

CONTEXT = 1 << 16
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 1 << 20,
    "max_position_embeddings": CONTEXT,
    "torch_dtype": "float32",
}
END = 2
"""The end token; others are greater."""


def configure(folder: Path, machine: dict[str, Any]) -> VllmConfig:
    """vLLM's defaults, except for what ``machine`` says and for steps that overlap."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODEL))
    scheduling = SchedulerConfig(
        max_num_seqs=machine["running_limit"],
        max_num_batched_tokens=machine["token_budget"],
        max_model_len=CONTEXT,
        is_encoder_decoder=False,
        policy=machine["order"],
        long_prefill_token_threshold=machine["long_prefill_token_threshold"],
        async_scheduling=False,
    )
    cache = CacheConfig(block_size=machine["page_size"], enable_prefix_caching=machine["allocator"] == "prefix")
    cache.num_gpu_blocks = machine["pages"] + 1  # one of them is vLLM's null block, which holds nothing
    return VllmConfig(
        model_config=ModelConfig(model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=CONTEXT),
        scheduler_config=scheduling,
        cache_config=cache,
        device_config=DeviceConfig(device="cpu"),
    )


def make(config: VllmConfig) -> Scheduler:
    cache = config.cache_config
    layers = FullAttentionSpec(block_size=cache.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    memory = KVCacheConfig(
        num_blocks=cache.num_gpu_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layers)]
    )
    return Scheduler(config, memory, StructuredOutputManager(config), block_size=cache.block_size)


class Run:
    """One episode, step by step, on one scheduler."""

    def __init__(self, config: VllmConfig, episode: dict[str, Any]) -> None:
        self.requests = episode["requests"]
        self.scheduler = make(config)
        self.hasher = None
        if config.cache_config.enable_prefix_caching:
            self.hasher = get_request_block_hasher(config.cache_config.block_size, sha256)
        self.computing: dict[str, int] = {}
        self.coordinator = self.scheduler.kv_cache_manager.coordinator
        self.make_findable = self.coordinator.cache_blocks
        self.same_memory = episode["machine"]["same_memory"]
        if self.same_memory:
            self.coordinator.cache_blocks = self.later
        self.live: set[int] = set()

    def play(self) -> list[Any]:
        steps: list[Any] = []
        by_step: dict[int, list[int]] = {}
        leaving: dict[int, list[int]] = {}
        for id, each in enumerate(self.requests, 1):
            by_step.setdefault(each["step"], []).append(id)
            if each["cancel"]:
                leaving.setdefault(each["cancel"], []).append(id)
        last = max(by_step)
        step = 0
        while self.live or step <= last:
            gone = [id for id in leaving.get(step, ()) if id in self.live]
            self.live.difference_update(gone)
            self.leave(gone)
            self.scheduler.finish_requests([str(id) for id in gone], RequestStatus.FINISHED_ABORTED)
            for id in by_step.get(step, ()):
                self.add(id)
            steps.append(self.step())
            step += 1
        return steps

    def add(self, id: int) -> None:
        each = self.requests[id - 1]
        sampling = SamplingParams(max_tokens=each["max_tokens"])
        sampling.update_from_generation_config({}, END)
        request = Request(
            request_id=str(id),
            prompt_token_ids=each["prompt"],
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=float(id),
            priority=each["priority"],
            block_hasher=self.hasher,
        )
        self.live.add(id)
        self.scheduler.add_request(request)

    def step(self) -> Any:
        """Schedule until something is scheduled, or nothing was preempted either; then let it be executed."""
        preempted: list[int] = []
        while True:
            before = {int(each.request_id) for each in self.scheduler.running}
            out = self.scheduler.schedule()
            running = [int(each.request_id) for each in self.scheduler.running]
            preempted += sorted(before.difference(running))
            tokens = {int(id): count for id, count in out.num_scheduled_tokens.items()}
            admitted = [id for id in running if id not in before]
            if tokens or not before.difference(running):
                break
        ended = self.execute(out) if tokens else []
        return [sorted(tokens.items()), admitted, preempted, ended]

    def later(self, request: Request, tokens: int) -> None:
        """In the place of the memory's own: full pages of the prompt become findable when the step is done."""
        self.computing[request.request_id] = min(tokens, request.num_prompt_tokens)

    def leave(self, ids: list[int]) -> None:
        """They end: pages of their answers become findable now."""
        for id in ids:
            request = self.scheduler.requests[str(id)]
            if self.same_memory and request.status == RequestStatus.RUNNING:
                self.make_findable(request, request.num_computed_tokens)

    def execute(self, out: Any) -> list[int]:
        """A token for everybody who has nothing left to compute: the end token for whoever is at its end."""
        ids = list(out.num_scheduled_tokens)
        for id in ids:
            if id in self.computing:
                self.make_findable(self.scheduler.requests[id], self.computing[id])
        self.computing.clear()
        sampled: list[list[int]] = []
        ending: list[int] = []
        for id in ids:
            request = self.scheduler.requests[id]
            made = request.num_output_tokens + 1
            each = self.requests[int(id) - 1]
            token = END if made == each["output"] else 500_000 + int(id)
            samples = request.num_computed_tokens == request.num_tokens
            sampled.append([token] if samples else [])
            if samples and made in (each["output"], each["max_tokens"]):
                ending.append(int(id))
        self.leave(ending)
        result = ModelRunnerOutput(
            req_ids=ids, req_id_to_index={id: index for index, id in enumerate(ids)}, sampled_token_ids=sampled
        )
        self.scheduler.update_from_output(out, result)
        ended = [int(id) for id in ids if id not in self.scheduler.requests]
        self.live.difference_update(ended)
        return sorted(ended)


def main() -> None:
    folder, episodes, decisions = map(Path, sys.argv[1:])
    init_none_hash(sha256)
    configs: dict[str, VllmConfig] = {}
    with episodes.open() as lines, decisions.open("w") as out:
        for line in lines:
            episode = json.loads(line)
            key = json.dumps(episode["machine"])
            if key not in configs:
                configs[key] = configure(folder, episode["machine"])
            print(json.dumps(Run(configs[key], episode).play()), file=out)


if __name__ == "__main__":
    main()
