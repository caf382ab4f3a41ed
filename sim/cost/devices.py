"""Accelerators that ``roofline`` knows.  Peaks are the vendor's, without sparsity; what is reached is an option.

To add one, add an entry here, or give the same table as the option ``device``.  Bandwidths of links are those of one
direction: vendors state the sum of both.  Memory is what the driver offers, which is less than a data sheet's gigabytes
suggest, or more where these mean 2³⁰ bytes.  Latencies of links are on nobody's data sheet: they are the order of
magnitude that public tests of small collectives show, a microsecond a hop over NVLink, several over PCIe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

_GB, _MIB = 10**9, 1 << 20
_NVLINK_NS, _XGMI_NS, _PCIE_NS = 1_000, 1_500, 5_000
_GEN4, _GEN5 = 32 * _GB, 64 * _GB
"""PCI Express with 16 lanes."""

Rate = Annotated[int, msgspec.Meta(ge=1, le=1 << 60)]


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One accelerator: bytes, bytes a second, operations a second."""

    name: str
    memory: Rate
    """Bytes."""
    bandwidth: Rate
    """Of its memory."""
    operations: Mapping[str, Rate]
    """Dense matrix products by precision: bf16, and fp8 and int8 where it has them."""
    link: Rate
    """To the others of a tensor group, one direction."""
    link_ns: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = _NVLINK_NS
    """For the first byte over a link."""
    host: Rate
    """To the host's memory, one direction."""
    source: str = ""

    def __post_init__(self) -> None:
        if "bf16" not in self.operations:
            raise ValueError("operations has no bf16")


def _peaks(bf16: int, fp8: int = 0, int8: int = 0) -> dict[str, int]:
    """From 10⁹ operations a second."""
    found = {"bf16": bf16, "fp8": fp8, "int8": int8}
    return {name: value * _GB for name, value in found.items() if value}


_ALL = (
    Device(
        name="A100-40",
        memory=40_960 * _MIB,
        bandwidth=1_555 * _GB,
        operations=_peaks(312_000, int8=624_000),
        link=300 * _GB,
        host=_GEN4,
        source="NVIDIA A100 data sheet (SXM, 40 GB)",
    ),
    Device(
        name="A100-80",
        memory=81_920 * _MIB,
        bandwidth=2_039 * _GB,
        operations=_peaks(312_000, int8=624_000),
        link=300 * _GB,
        host=_GEN4,
        source="NVIDIA A100 data sheet (SXM, 80 GB)",
    ),
    Device(
        name="H100",
        memory=81_559 * _MIB,
        bandwidth=3_350 * _GB,
        operations=_peaks(989_400, fp8=1_978_900, int8=1_978_900),
        link=450 * _GB,
        host=_GEN5,
        source="NVIDIA H100 data sheet (SXM5)",
    ),
    Device(
        name="H200",
        memory=143_771 * _MIB,
        bandwidth=4_800 * _GB,
        operations=_peaks(989_400, fp8=1_978_900, int8=1_978_900),
        link=450 * _GB,
        host=_GEN5,
        source="NVIDIA H200 data sheet (SXM)",
    ),
    Device(
        name="L4",
        memory=23_034 * _MIB,
        bandwidth=300 * _GB,
        operations=_peaks(121_000, fp8=242_500, int8=242_500),
        link=_GEN4,
        link_ns=_PCIE_NS,
        host=_GEN4,
        source="NVIDIA L4 data sheet",
    ),
    Device(
        name="L40S",
        memory=46_068 * _MIB,
        bandwidth=864 * _GB,
        operations=_peaks(362_000, fp8=733_000, int8=733_000),
        link=_GEN4,
        link_ns=_PCIE_NS,
        host=_GEN4,
        source="NVIDIA L40S data sheet",
    ),
    Device(
        name="B200",
        memory=183_359 * _MIB,
        bandwidth=8_000 * _GB,
        operations=_peaks(2_250_000, fp8=4_500_000, int8=4_500_000),
        link=900 * _GB,
        host=_GEN5,
        source="NVIDIA Blackwell architecture brief (HGX B200, 1,000 W)",
    ),
    Device(
        name="MI300X",
        memory=196_592 * _MIB,
        bandwidth=5_300 * _GB,
        operations=_peaks(1_307_400, fp8=2_614_900, int8=2_614_900),
        link=448 * _GB,
        link_ns=_XGMI_NS,
        host=_GEN5,
        source="AMD Instinct MI300X data sheet (seven links of 64 GB/s a direction)",
    ),
)

DEVICES = {each.name: each for each in _ALL}
"""By name."""
