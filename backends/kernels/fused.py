"""Every operation by Triton.  Importing this imports Triton, so ``choose`` does it only where they are to be used."""

from __future__ import annotations

from stepwell.backends.kernels.attention import triton as attention
from stepwell.backends.kernels.norm import triton as norm
from stepwell.backends.kernels.pages import triton as pages
from stepwell.backends.kernels.rope import triton as rope
from stepwell.backends.kernels.sampling import triton as sampling
from stepwell.backends.kernels.swiglu import triton as gate


class TritonKernels:
    """See ``suite.Kernels``."""

    name = "triton"
    add_norm = staticmethod(norm.add_norm)
    rotate_and_write = staticmethod(rope.rotate_and_write)
    swiglu = staticmethod(gate.swiglu)
    paged_decode = staticmethod(attention.paged_decode)
    paged_prefill = staticmethod(attention.paged_prefill)
    sample = staticmethod(sampling.sample)
    copy_pages = staticmethod(pages.copy_pages)
    gather_pages = staticmethod(pages.gather_pages)
    scatter_pages = staticmethod(pages.scatter_pages)
