"""Two other ways to attend to a sharded sequence: Ulysses, and gathered keys and values.

Ulysses changes from shards of the sequence to shards of the heads, and back. Heads are independent
of each other. So each rank takes some heads of the whole sequence, runs any attention kernel, and
sends every rank the outputs of its tokens:

    before    all heads, t tokens      q, k, v
              all-to-all               h = H/n heads, T tokens      scaled_dot_product_attention
    after     all heads, t tokens      <- all-to-all                out

Layout: q_BHtK, k_BGtK, v_BGtK, out_BHtK: time is sharded by the placement; inside, q_BhTK and
k_BgTK: heads are sharded. n divides G, and so H, which limits the number of ranks.
Wire, per rank: forward, all of q, k, v except its own heads of its own tokens, then the other
ranks' tokens of out: (n-1)/n of each, for equal shards; backward the same in the other direction. A
shard has T/n tokens, so with more ranks each sends less; on a ring each sends (n-1)/n of T.
All ranks compute equally much, causal or not, so no placement needs to balance.
Paper: Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509.

Gathered attention is the baseline that a ring is compared with: every rank gets the keys and values
of the whole sequence, and computes the rows of its queries.

Layout: as above; inside, k_BGTK and v_BGTK are whole.
Wire, per rank: forward, its keys and values to each other rank, n - 1 times their bytes; backward
the gradients of all other ranks' tokens, each to its owner. No rank computes during these.
Memory: whole keys and values, kept until backward, whatever the number of ranks, and a mask of
t x T. Llama 3 was trained in this way: it has few heads of keys, so they are small beside queries.
Paper: Grattafiori et al., "The Llama 3 Herd of Models", arXiv:2407.21783, section 3.3.2.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit import arguments
from labkit.collectives import autograd
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.context_parallel.shards import (
    Placement,
    SequenceSharding,
    checked_sharding,
    contiguous,
    gather_sequence,
)


def ulysses_attention(
    q_BHtK: Tensor,
    k_BGtK: Tensor,
    v_BGtK: Tensor,
    group: Group | None = None,
    causal: bool = True,
    placement: Placement = contiguous,
    *,
    num_tokens: int | None = None,
) -> Tensor:
    """Return out_BHtK, like `ring_attention`, with its arguments and errors.

    ValueError also if the number of ranks does not divide the number of heads of keys.
    """
    group = chosen(group)
    sharding = checked_sharding(q_BHtK, k_BGtK, v_BGtK, group, causal, placement, num_tokens)
    H, G = q_BHtK.shape[1], k_BGtK.shape[1]
    _require_heads_for_all(G, group.size)
    by_owner = [x.unflatten(1, (group.size, -1)) for x in (q_BHtK, k_BGtK, v_BGtK)]
    with group.label(sharding.label("tokens for heads", causal)):
        heads_BsTK = _to_heads(torch.cat(by_owner, dim=2).flatten(1, 2), group, sharding)
    q_BhTK, k_BgTK, v_BgTK = heads_BsTK.split([x.shape[2] for x in by_owner], dim=1)
    out_BhTK = F.scaled_dot_product_attention(
        q_BhTK, k_BgTK, v_BgTK, is_causal=causal, enable_gqa=H != G
    )
    return _to_sequence(out_BhTK, group, sharding)


def _to_heads(x_BStK: Tensor, group: Group, sharding: SequenceSharding) -> Tensor:
    """Return an n-th of x_BSTK's heads on each rank, for all tokens. Adjoint: _to_sequence.

    Dim 1: first the heads that go to rank 0, then those of rank 1, ...
    """
    num_own = x_BStK.shape[2]
    x_ntBsK = x_BStK.unflatten(1, (group.size, -1)).permute(1, 3, 0, 2, 4)
    x_TBsK = autograd.all_to_all(
        x_ntBsK.flatten(0, 1),
        group,
        send_splits=[num_own] * group.size,
        recv_splits=sharding.lengths,
    )
    if sharding.placement is not contiguous:  # tokens arrived in the order of ranks
        x_TBsK = x_TBsK.index_select(0, sharding.places.to(x_TBsK.device))
    return x_TBsK.permute(1, 2, 0, 3)


def _to_sequence(x_BsTK: Tensor, group: Group, sharding: SequenceSharding) -> Tensor:
    """Return all heads of this rank's tokens. Adjoint: _to_heads."""
    x_TBsK = x_BsTK.permute(2, 0, 1, 3)
    if sharding.placement is not contiguous:
        order = torch.cat([sharding.positions(rank) for rank in range(group.size)])
        x_TBsK = x_TBsK.index_select(0, order.to(x_TBsK.device))
    num_own = sharding.length(group.rank)
    x_ntBsK = autograd.all_to_all(
        x_TBsK, group, send_splits=sharding.lengths, recv_splits=[num_own] * group.size
    ).unflatten(0, (group.size, num_own))
    return x_ntBsK.permute(2, 0, 3, 1, 4).flatten(1, 2)


def _require_heads_for_all(num_heads: int, size: int) -> None:
    """Check that the number of ranks divides that of heads of keys, and so that of queries."""
    if num_heads % size:
        why = "are fewer than" if num_heads < size else "cannot be dealt out equally to"
        choices = ", ".join(map(str, arguments.divisors(num_heads)))
        raise ValueError(
            f"{num_heads} heads of keys {why} {size} ranks, and each takes whole heads; use a "
            f"group of {choices} ranks, or ring_attention, which cuts no heads"
        )


def gathered_attention(
    q_BHtK: Tensor,
    k_BGtK: Tensor,
    v_BGtK: Tensor,
    group: Group | None = None,
    causal: bool = True,
    placement: Placement = contiguous,
    *,
    num_tokens: int | None = None,
) -> Tensor:
    """Return out_BHtK, like `ring_attention`, with its arguments and errors."""
    group = chosen(group)
    sharding = checked_sharding(q_BHtK, k_BGtK, v_BGtK, group, causal, placement, num_tokens)
    kv_2BGtK = torch.stack([k_BGtK, v_BGtK])
    with group.label(sharding.label("keys and values", causal)):
        k_BGTK, v_BGTK = gather_sequence(
            kv_2BGtK, group, placement, 3, num_tokens=sharding.num_tokens
        )
    mask_tT = None
    if causal:
        keys, queries = torch.arange(sharding.num_tokens), sharding.positions(group.rank)
        mask_tT = (keys <= queries[:, None]).to(q_BHtK.device)
    has_groups = q_BHtK.shape[1] != k_BGTK.shape[1]
    return F.scaled_dot_product_attention(
        q_BHtK, k_BGTK, v_BGTK, attn_mask=mask_tT, enable_gqa=has_groups
    )
