"""What a decoder-only language model is made of, and what follows from it: parameters, KV bytes, products per token.

Counts are of the whole model; ``parallel`` says what of them one device has.  Formulas: parameters and products of a
transformer layer, Kaplan et al. 2020 (arXiv 2001.08361) section 2.1, with grouped-query attention (Ainslie et al. 2023,
arXiv 2305.13245), gated feed-forward layers (Shazeer 2020, arXiv 2002.05202) and latent attention with shared and
routed experts (DeepSeek-V3, arXiv 2412.19437, section 2.1).  A product and its sum count as two operations.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class GroupedQuery(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="grouped-query", tag_field="kind"
):
    """Several query heads share a key and a value head; as many of these as heads is plain multi-head attention."""

    heads: Size
    kv_heads: Size
    head_dim: Size
    bias: bool = False
    """Of queries, keys and values."""
    head_norm: bool = False
    """Queries and keys are normed head by head."""

    def parameters(self, hidden: int) -> int:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return (
            hidden * (2 * queries + 2 * keys)
            + (queries + 2 * keys if self.bias else 0)
            + (2 * self.head_dim if self.head_norm else 0)
        )

    def cached(self, devices: int) -> int:
        """Numbers in the KV cache per token and layer on one of ``devices`` that share the heads."""
        return 2 * -(-self.kv_heads // devices) * self.head_dim

    def decode_operations(self) -> int:
        """Per position that a decoding token attends to."""
        return 4 * self.heads * self.head_dim

    def prefill_operations(self) -> int:
        """Per pair of tokens."""
        return 4 * self.heads * self.head_dim

    def moved(self) -> int:
        """Numbers that the rotary embedding reads and writes per token."""
        return 2 * (self.heads + self.kv_heads) * self.head_dim


class Latent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="latent", tag_field="kind"):
    """Multi-head latent attention: one compressed vector and one rotary key per token, shared by all heads.

    Decoding attends in the compressed space (the up-projections are absorbed), prefill in the heads' own.
    """

    heads: Size
    query_rank: Size
    kv_rank: Size
    nope_dim: Size
    rope_dim: Size
    value_dim: Size

    def parameters(self, hidden: int) -> int:
        queries = self.heads * (self.nope_dim + self.rope_dim)
        return (
            hidden * self.query_rank
            + self.query_rank * queries
            + hidden * (self.kv_rank + self.rope_dim)
            + self.kv_rank * self.heads * (self.nope_dim + self.value_dim)
            + self.heads * self.value_dim * hidden
            + self.query_rank
            + self.kv_rank
        )

    def cached(self, devices: int) -> int:
        """Every device that shares the heads needs the whole compressed vector."""
        return self.kv_rank + self.rope_dim

    def decode_operations(self) -> int:
        return 2 * self.heads * (2 * self.kv_rank + self.rope_dim)

    def prefill_operations(self) -> int:
        return 2 * self.heads * (self.nope_dim + self.rope_dim + self.value_dim)

    def moved(self) -> int:
        return 2 * (self.heads + 1) * self.rope_dim


class Experts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Feed-forward layers of which each token uses a few."""

    experts: Size
    active: Size
    """Routed ones that a token uses."""
    intermediate: Size
    shared: Number = 0
    """Used by every token, beside the routed ones."""
    first_dense: Number = 0
    """Layers at the front that have one plain feed-forward layer instead."""


class LanguageModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model; every number as in its ``config.json``."""

    name: str
    layers: Size
    hidden: Size
    intermediate: Size
    """Of the plain feed-forward layers; any number if there are none."""
    vocabulary: Size
    attention: GroupedQuery | Latent
    experts: Experts | None = None
    tied: bool = False
    """The output layer is the embedding."""
    context: Number = 0
    """Positions that it was made for; 0: not told."""
    published: Number = 0
    """Parameters that its authors state; 0: not told."""
    source: str = ""

    @property
    def sparse_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.experts.first_dense if self.experts else 0

    @property
    def linear_parameters(self) -> int:
        """What every token is multiplied with: attention, plain and shared feed-forward layers, routers."""
        per_layer = self.attention.parameters(self.hidden) + 2 * self.hidden
        count = self.layers * per_layer + (self.layers - self.sparse_layers) * 3 * self.hidden * self.intermediate
        if self.experts:
            shared = 3 * self.hidden * self.experts.intermediate * self.experts.shared
            count += self.sparse_layers * (shared + self.hidden * self.experts.experts)
        return count

    @property
    def expert_parameters(self) -> int:
        """One routed expert, in all layers that have it."""
        return self.sparse_layers * 3 * self.hidden * self.experts.intermediate if self.experts else 0

    @property
    def head_parameters(self) -> int:
        """The output layer."""
        return self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        routed = self.expert_parameters * self.experts.experts if self.experts else 0
        embeddings = self.head_parameters * (1 if self.tied else 2)
        return self.linear_parameters + routed + embeddings + self.hidden

    @property
    def active_parameters(self) -> int:
        """What one token uses, embeddings counted as in ``parameters``."""
        idle = self.experts.experts - self.experts.active if self.experts else 0
        return self.parameters - self.expert_parameters * idle

    @property
    def moved(self) -> int:
        """Numbers that a token's activations move through memory outside the products, in all layers.

        Counted from the kernels that engines leave by themselves: two norms with the residual (two reads and two
        writes each), the rotary embedding, the gated activation (two reads, one write).
        """
        per_layer = 8 * self.hidden + self.attention.moved()
        gated = (self.layers - self.sparse_layers) * 3 * self.intermediate
        if self.experts:
            gated += self.sparse_layers * 3 * self.experts.intermediate * (self.experts.active + self.experts.shared)
        return self.layers * per_layer + gated
