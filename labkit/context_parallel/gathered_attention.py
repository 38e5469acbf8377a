"""Attention with gathered keys and values: the baseline that a ring is compared with.

Every rank gets the keys and values of the whole sequence, and computes the rows of its queries.

Layout: q_BHtK, k_BGtK, v_BGtK, out_BHtK: time is sharded; inside, k_BGTK and v_BGTK are whole.
Wire, per rank: forward, its keys and values to each other rank, n - 1 times their bytes; backward
the gradients of all other ranks' tokens, each to its owner. Nothing computes meanwhile.
Memory: whole keys and values, kept until backward, whatever the number of ranks, and a mask of
t x T. Llama 3 was trained so: with few heads of keys, they are small beside the queries.

Paper: Grattafiori et al., "The Llama 3 Herd of Models", arXiv:2407.21783, section 3.3.2.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.context_parallel.shards import checked_cut
from labkit.context_parallel.token_placement import Placement, contiguous, gather_sequence


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
    """out_BHtK, as `ring_attention`, with its arguments and errors."""
    group = chosen(group)
    cut = checked_cut(q_BHtK, k_BGtK, v_BGtK, group, causal, placement, num_tokens)
    kv_2BGtK = torch.stack([k_BGtK, v_BGtK])
    with group.label(cut.label("keys and values", causal)):
        k_BGTK, v_BGTK = gather_sequence(kv_2BGtK, group, placement, 3, num_tokens=cut.num_tokens)
    mask_tT = None
    if causal:
        keys, queries = torch.arange(cut.num_tokens), cut.positions(group.rank)
        mask_tT = (keys <= queries[:, None]).to(q_BHtK.device)
    has_groups = q_BHtK.shape[1] != k_BGTK.shape[1]
    return F.scaled_dot_product_attention(
        q_BHtK, k_BGTK, v_BGTK, attn_mask=mask_tT, enable_gqa=has_groups
    )
