"""What devices that share a model send each other in a step.

- *Tensor parallel* over t: two all-reduces a layer (Shoeybi et al. 2019, arXiv 1909.08053, section 3), each moving
  2(t − 1)/t of a layer's output over every link in 2(t − 1) hops, as a ring does (Patarasuk and Yuan 2009, "Bandwidth
  optimal all-reduce algorithms", section 3); the logits are gathered once.
- *Expert parallel* over e groups: in layers with experts an all-to-all sends each token's vector to its experts and
  another brings the results, in place of the second all-reduce (Lepikhin et al. 2020, arXiv 2006.16668, section 3); of
  n devices, (n − 1)/n of the vectors leave theirs, in n − 1 messages.
- *Pipeline parallel* over p stages: the batch's vectors go over p − 1 links.

Nothing of this is hidden behind computation.
"""

from __future__ import annotations

from fractions import Fraction

import msgspec

from stepwell.sim.cost.setup import ACTIVATION_BYTES, Setup


class Traffic(msgspec.Struct, frozen=True):
    """Of one device, in a step: bytes over its link, and nanoseconds that hops take whatever they carry."""

    token_bytes: Fraction
    """Per token of its part of the batch."""
    row_bytes: Fraction
    """Per row of logits."""
    hops_ns: int


def traffic(setup: Setup) -> Traffic:
    """What the setup's collectives move."""
    model, options, hop_ns = setup.model, setup.options, setup.device.link_ns
    tensor, stages, members = options.tensor_parallel, options.pipeline_parallel, setup.group
    vector = model.hidden * ACTIVATION_BYTES
    spread = model.sparse_layers if setup.ranks > 1 else 0
    reduces = 2 * model.layers - spread if tensor > 1 else 0
    token_bytes = Fraction(reduces * 2 * (tensor - 1) * vector, tensor)
    hops = reduces * 2 * (tensor - 1)
    if spread and model.experts:
        token_bytes += Fraction(2 * spread * model.experts.active * vector * (members - 1), members * tensor)
        hops += 2 * spread * (members - 1)
    token_bytes += (stages - 1) * vector
    hops += stages - 1
    row_bytes = Fraction((tensor - 1) * model.vocabulary * ACTIVATION_BYTES, tensor)
    return Traffic(token_bytes, row_bytes, hops * hop_ns)
