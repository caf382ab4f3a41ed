"""Every operation in plain torch, on any device: the truth that others are held to, and what runs without them."""

from __future__ import annotations

from stepwell.backends.kernels.attention import reference as attention
from stepwell.backends.kernels.norm import reference as norm
from stepwell.backends.kernels.pages import reference as pages
from stepwell.backends.kernels.rope import reference as rope
from stepwell.backends.kernels.sampling import reference as sampling
from stepwell.backends.kernels.swiglu import reference as gate


class PlainKernels:
    """See ``suite.Kernels``."""

    name = "plain"
    add_norm = staticmethod(norm.add_norm)
    rotate_and_write = staticmethod(rope.rotate_and_write)
    swiglu = staticmethod(gate.swiglu)
    paged_decode = staticmethod(attention.paged_decode)
    paged_prefill = staticmethod(attention.paged_prefill)
    sample = staticmethod(sampling.sample)
    copy_pages = staticmethod(pages.copy_pages)
    gather_pages = staticmethod(pages.gather_pages)
    scatter_pages = staticmethod(pages.scatter_pages)
