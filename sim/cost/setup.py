"""What ``roofline`` is asked for: which model on which devices, how precise, and what is reached of the peaks."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Literal, TypeVar

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.schema import unknown
from stepwell.sim.cost.architecture import LanguageModel
from stepwell.sim.cost.devices import DEVICES, Device
from stepwell.sim.cost.models import MODELS

T = TypeVar("T", Device, LanguageModel)

Precision = Literal["bf16", "fp8", "int8", "int4"]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Degree = Annotated[int, msgspec.Meta(ge=1, le=4096)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=10**12)]

BYTES: Mapping[str, Fraction] = {
    "bf16": Fraction(2),
    "fp8": Fraction(1),
    "int8": Fraction(1),
    "int4": Fraction(133, 256),
}
"""Per number.  ``int4``: groups of 128 with a scale of two bytes and a zero point of half a byte."""

ACTIVATION_BYTES = 2
"""Activations, embeddings and the output layer stay in bf16."""


class RooflineOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a default comes from is said beside it; docs/cost_models.md compares what follows with measurements."""

    device: str | Device = "H100"
    """A name of the catalogue (`stepwell cost list`), or a table of the same fields."""
    model: str | LanguageModel = "llama-3-8b"
    """The same."""
    weights: Precision = "bf16"
    """Of the linear layers.  Products are in this precision where the device has it, else in bf16; ``int4`` is
    expanded to bf16."""
    kv: Literal["bf16", "fp8"] = "bf16"
    """Of the KV cache."""
    tensor_parallel: Degree = 1
    """Devices that share each layer."""
    expert_parallel: Degree = 1
    """Groups among which experts are spread; each group attends for its part of the batch and holds its KV."""
    pipeline_parallel: Degree = 1
    """Stages one behind another.  A step goes through all of them before the next begins."""
    page_size: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 16
    """Tokens in a page that is swapped or copied: as ``memory.page_size``."""
    bandwidth_share: Share = 0.9
    """Of the memory's peak.  Measured on an H200: a copy moves 4.3 of 4.8 TB/s."""
    compute_share: Share = 0.8
    """Of the products' peak.  Measured on an H200: large bf16 products reach 790 of 989 TFLOP/s."""
    link_share: Share = 0.8
    """Of the links' peak.  Assumed."""
    host_share: Share = 0.8
    """Of PCI Express.  Assumed: pinned copies reach about 25 of 32 GB/s."""
    step_overhead_ns: Annotated[int, msgspec.Meta(ge=1, le=10**12)] = 300_000
    """Per step.  Fitted, with the next one, on two published points: one request of Qwen3-8B on an H100 under vLLM
    0.30, 6.83 ms a token in bf16 and 4.62 ms in fp8."""
    layer_overhead_ns: Nanoseconds = 42_000
    """Per layer and step: launches, and kernels too small for either roof."""
    request_overhead_ns: Nanoseconds = 10_000
    """Per request and step.  vLLM's scheduler alone was measured at 11 to 15 µs; 10 is what the published steps of that
    H100 grow by per request, beyond its KV, from 1 to 128."""
    utilisation: Share = 0.9
    """Part of the device's memory that an engine may take, as vLLM's ``gpu_memory_utilization``."""
    reserve_mib: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)] = 2048
    """Of that, for activations and the runtime.  Assumed."""


class Setup(msgspec.Struct, frozen=True):
    """The options with the catalogue's entries in place of names."""

    device: Device
    model: LanguageModel
    options: RooflineOptions

    @property
    def ranks(self) -> int:
        """Parts of a batch, each attended to by one tensor group."""
        return self.options.expert_parallel

    @property
    def group(self) -> int:
        """Devices of a stage."""
        return self.options.tensor_parallel * self.options.expert_parallel

    @property
    def devices(self) -> int:
        return self.group * self.options.pipeline_parallel

    @property
    def math(self) -> str:
        """The precision of products with weights."""
        wanted = self.options.weights
        return wanted if wanted in self.device.operations else "bf16"

    @property
    def operations(self) -> Fraction:
        """A second, in products with weights."""
        return self.device.operations[self.math] * exactly(self.options.compute_share)

    @property
    def plain_operations(self) -> Fraction:
        """The same in bf16: attention and the output layer."""
        return self.device.operations["bf16"] * exactly(self.options.compute_share)

    @property
    def bandwidth(self) -> Fraction:
        return self.device.bandwidth * exactly(self.options.bandwidth_share)

    @property
    def link(self) -> Fraction:
        return self.device.link * exactly(self.options.link_share)

    @property
    def host(self) -> Fraction:
        return self.device.host * exactly(self.options.host_share)

    @property
    def kv_bytes(self) -> int:
        """Of a token, in all layers, on one tensor group's device (all stages together)."""
        numbers = self.model.layers * self.model.attention.cached(self.options.tensor_parallel)
        return numbers * int(BYTES[self.options.kv])


def exactly(share: float) -> Fraction:
    """The decimal that was written, not its binary neighbour."""
    return Fraction(str(share))


def resolve(options: RooflineOptions) -> Setup:
    """Look names up and check what must hold between options; raises ``UserError``."""
    device = _find("device", options.device, DEVICES)
    model = _find("model", options.model, MODELS)
    tensor, groups, stages = options.tensor_parallel, options.expert_parallel, options.pipeline_parallel
    if model.attention.heads % tensor:
        raise _wrong("tensor_parallel", f"{tensor} devices cannot share {model.attention.heads} heads evenly")
    if stages > model.layers:
        raise _wrong("pipeline_parallel", f"{stages} stages are more than the {model.layers} layers of {model.name}")
    if groups > 1 and (model.experts is None or model.experts.experts % (tensor * groups)):
        has = f"{model.experts.experts} experts" if model.experts else "no experts"
        raise _wrong("expert_parallel", f"{model.name} has {has}, which {tensor * groups} devices cannot share evenly")
    if model.experts and not (model.experts.active <= model.experts.experts and model.sparse_layers >= 0):
        raise _wrong("model", "has more active experts than experts, or more dense layers than layers")
    return Setup(device, model, options)


def _find(what: str, given: str | T, known: Mapping[str, T]) -> T:
    if not isinstance(given, str):
        return given
    if given not in known:
        raise unknown(what, given, known, field=f"cost.options.{what}")
    return known[given]


def _wrong(option: str, message: str) -> UserError:
    return UserError(message, field=f"cost.options.{option}")
