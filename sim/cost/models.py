"""Models with open weights that ``roofline`` knows.  Numbers are those of each model's ``config.json``, and
``published`` is the parameter count on its model card.  To add one, add an entry here, or give the same table as the
option ``model``.
"""

from __future__ import annotations

from stepwell.sim.cost.architecture import Experts, GroupedQuery, LanguageModel, Latent


def _grouped(
    heads: int, kv_heads: int, *, head_dim: int = 128, bias: bool = False, head_norm: bool = False
) -> GroupedQuery:
    return GroupedQuery(heads=heads, kv_heads=kv_heads, head_dim=head_dim, bias=bias, head_norm=head_norm)


def _config(repository: str) -> str:
    return f"https://huggingface.co/{repository}/blob/main/config.json"


_ALL = (
    LanguageModel(
        name="llama-3-8b",
        layers=32,
        hidden=4096,
        intermediate=14_336,
        vocabulary=128_256,
        attention=_grouped(32, 8),
        context=131_072,
        published=8_030_261_248,
        source=_config("meta-llama/Llama-3.1-8B"),
    ),
    LanguageModel(
        name="llama-3-70b",
        layers=80,
        hidden=8192,
        intermediate=28_672,
        vocabulary=128_256,
        attention=_grouped(64, 8),
        context=131_072,
        published=70_553_706_496,
        source=_config("meta-llama/Llama-3.1-70B"),
    ),
    LanguageModel(
        name="llama-3-405b",
        layers=126,
        hidden=16_384,
        intermediate=53_248,
        vocabulary=128_256,
        attention=_grouped(128, 8),
        context=131_072,
        published=405_853_388_800,
        source=_config("meta-llama/Llama-3.1-405B"),
    ),
    LanguageModel(
        name="qwen-2.5-7b",
        layers=28,
        hidden=3584,
        intermediate=18_944,
        vocabulary=152_064,
        attention=_grouped(28, 4, bias=True),
        context=131_072,
        published=7_615_616_512,
        source=_config("Qwen/Qwen2.5-7B"),
    ),
    LanguageModel(
        name="qwen-2.5-32b",
        layers=64,
        hidden=5120,
        intermediate=27_648,
        vocabulary=152_064,
        attention=_grouped(40, 8, bias=True),
        context=131_072,
        published=32_763_876_352,
        source=_config("Qwen/Qwen2.5-32B"),
    ),
    LanguageModel(
        name="qwen-2.5-72b",
        layers=80,
        hidden=8192,
        intermediate=29_568,
        vocabulary=152_064,
        attention=_grouped(64, 8, bias=True),
        context=131_072,
        published=72_706_203_648,
        source=_config("Qwen/Qwen2.5-72B"),
    ),
    LanguageModel(
        name="qwen-3-8b",
        layers=36,
        hidden=4096,
        intermediate=12_288,
        vocabulary=151_936,
        attention=_grouped(32, 8, head_norm=True),
        context=40_960,
        published=8_190_735_360,
        source=_config("Qwen/Qwen3-8B"),
    ),
    LanguageModel(
        name="qwen-3-14b",
        layers=40,
        hidden=5120,
        intermediate=17_408,
        vocabulary=151_936,
        attention=_grouped(40, 8, head_norm=True),
        context=40_960,
        published=14_768_307_200,
        source=_config("Qwen/Qwen3-14B"),
    ),
    LanguageModel(
        name="qwen-3-32b",
        layers=64,
        hidden=5120,
        intermediate=25_600,
        vocabulary=151_936,
        attention=_grouped(64, 8, head_norm=True),
        context=40_960,
        published=32_762_123_264,
        source=_config("Qwen/Qwen3-32B"),
    ),
    LanguageModel(
        name="qwen-3-30b-a3b",
        layers=48,
        hidden=2048,
        intermediate=6144,
        vocabulary=151_936,
        attention=_grouped(32, 4, head_norm=True),
        experts=Experts(experts=128, active=8, intermediate=768),
        context=40_960,
        published=30_532_122_624,
        source=_config("Qwen/Qwen3-30B-A3B"),
    ),
    LanguageModel(
        name="qwen-3-235b-a22b",
        layers=94,
        hidden=4096,
        intermediate=12_288,
        vocabulary=151_936,
        attention=_grouped(64, 4, head_norm=True),
        experts=Experts(experts=128, active=8, intermediate=1536),
        context=40_960,
        published=235_093_634_560,
        source=_config("Qwen/Qwen3-235B-A22B"),
    ),
    LanguageModel(
        name="mistral-7b",
        layers=32,
        hidden=4096,
        intermediate=14_336,
        vocabulary=32_768,
        attention=_grouped(32, 8),
        context=32_768,
        published=7_248_023_552,
        source=_config("mistralai/Mistral-7B-v0.3"),
    ),
    LanguageModel(
        name="mixtral-8x7b",
        layers=32,
        hidden=4096,
        intermediate=14_336,
        vocabulary=32_000,
        attention=_grouped(32, 8),
        experts=Experts(experts=8, active=2, intermediate=14_336),
        context=32_768,
        published=46_702_792_704,
        source=_config("mistralai/Mixtral-8x7B-v0.1"),
    ),
    LanguageModel(
        name="mixtral-8x22b",
        layers=56,
        hidden=6144,
        intermediate=16_384,
        vocabulary=32_000,
        attention=_grouped(48, 8),
        experts=Experts(experts=8, active=2, intermediate=16_384),
        context=65_536,
        published=140_620_634_112,
        source=_config("mistralai/Mixtral-8x22B-v0.1"),
    ),
    LanguageModel(
        name="deepseek-v3",
        layers=61,
        hidden=7168,
        intermediate=18_432,
        vocabulary=129_280,
        attention=Latent(heads=128, query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
        experts=Experts(experts=256, active=8, intermediate=2048, shared=1, first_dense=3),
        context=163_840,
        published=671_000_000_000,
        source=_config("deepseek-ai/DeepSeek-V3") + " (without the layer that predicts further tokens)",
    ),
    LanguageModel(
        name="smollm2-135m",
        layers=30,
        hidden=576,
        intermediate=1536,
        vocabulary=49_152,
        attention=_grouped(9, 3, head_dim=64),
        tied=True,
        context=8_192,
        published=134_515_008,
        source=_config("HuggingFaceTB/SmolLM2-135M"),
    ),
)

MODELS = {each.name: each for each in _ALL}
"""By name."""
