"""The same weights and requests by transformers' own continuous batching, and by us, one after the other."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from stepwell.benchmarks.gpu.bench import Bench
from stepwell.benchmarks.gpu.driving import Driver, drive
from stepwell.benchmarks.gpu.engine import backend_of, config_of
from stepwell.benchmarks.gpu.lines import Line
from stepwell.benchmarks.gpu.source import random_source

KEY = "theirs"


def run(bench: Bench) -> None:
    bench.each("64 requests at once", lambda: both(bench), KEY)


def both(bench: Bench) -> Iterator[Line]:
    requests, length, tokens = bench.scale.beside
    what = f"{requests} requests, {length:,} tokens in and {tokens} out"
    ours_s, prompts = ours(bench)
    yield bench.line(f"{what}: stepwell", requests * tokens / ours_s, "tokens/s", "", f"{ours_s:.2f} s")
    if importlib.util.find_spec("transformers") is None:
        yield bench.missing(f"{what}: transformers", "transformers is not installed", KEY)
        return
    theirs_s = theirs(bench, prompts)
    yield bench.line(f"{what}: transformers", requests * tokens / theirs_s, "tokens/s", "", f"{theirs_s:.2f} s")
    yield bench.line("times the tokens/s of transformers", theirs_s / ours_s, "×", KEY)


def ours(bench: Bench) -> tuple[float, Sequence[list[int]]]:
    """Seconds from the first request to the last token, and the prompts."""
    requests, length, tokens = bench.scale.beside
    pages = requests * (-(-(length + tokens) // bench.scale.page_size) + 1)
    config = config_of(bench, pages, running=requests)
    found: list[tuple[float, Sequence[list[int]]]] = []

    async def work(driver: Driver) -> None:
        await driver.played(driver.prompts(requests, length), 4)  # warms up
        prompts = driver.prompts(requests, length)
        found.append((await driver.played(prompts, tokens), prompts))

    drive(config, backend_of(bench, config, kernels="triton" if bench.card else "plain"), work)
    return found[0]


def theirs(bench: Bench, prompts: Sequence[list[int]]) -> float:
    """Seconds for the same, by its batches and caches as they are set by default; the first time warms up."""
    from transformers import GenerationConfig  # lazy: it may not be there

    model = their_model(bench)
    _, _, tokens = bench.scale.beside
    wanted = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    took_s = 0.0
    for _ in range(2):
        bench.check()
        start_ns = time.perf_counter_ns()
        answers = model.generate_batch(
            inputs=list(prompts), generation_config=wanted, progress_bar=False, persistent_manager=True
        )
        took_s = (time.perf_counter_ns() - start_ns) / 1e9
        made = [len(each.generated_tokens) for each in answers.values()]
        if made != [tokens] * len(prompts):
            raise RuntimeError(f"{len(made)} answers of {sum(made)} tokens, not {len(prompts)} of {tokens} each")
    return took_s


def their_model(bench: Bench) -> Any:
    """Theirs, holding our weights."""
    from transformers import LlamaConfig, LlamaForCausalLM  # lazy: as above

    shape = bench.scale.model
    config = LlamaConfig(
        vocab_size=shape["vocab_size"],
        hidden_size=shape["hidden"],
        intermediate_size=shape["intermediate"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        head_dim=shape["head_dim"],
        max_position_embeddings=shape["context"],
        rms_norm_eps=shape["norm_eps"],
        rope_parameters={"rope_type": "default", "rope_theta": shape["rope_theta"]},
        tie_word_embeddings=False,
        dtype=bench.dtype,
    )
    source = random_source(shape, bench.device, bench.dtype)
    with torch.device(bench.device):
        model = LlamaForCausalLM._from_config(config, attn_implementation="sdpa", dtype=bench.dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(source.tensor(name))
    return model.eval()
